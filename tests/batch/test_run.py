from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from recap.batch import Record, Sink, Summary, caption_files, open_output, provenance
from recap.batch.run import CaptionJob
from recap.captioner import ReCap
from recap.datastore import Datastore
from recap.errors import InputError
from recap.files import progress_bar
from recap.language import Decoding
from recap.types import Draft, Prompt


@pytest.fixture
def folder(tmp_path: Path, pairs_folder: Path) -> Path:
    shutil.copytree(pairs_folder, tmp_path / "pictures", ignore=shutil.ignore_patterns("*.txt"))
    return tmp_path / "pictures"


class Collector:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed = False

    def add(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed = True


class Stop:
    """Breaks a run off after so many captions."""

    def __init__(self, after: int) -> None:
        self.left = after

    def add(self, record: Record) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


def run(
    captioner: ReCap, folder: Path, out: Path, sinks: Sequence[Sink] = (), failed: list[str] | None = None
) -> Summary:
    marks = provenance(captioner, "p")
    paths = sorted(map(str, folder.rglob("*.png")))
    failures: list[str] = [] if failed is None else failed
    with open_output(out, "jsonl", marks) as journal:
        return caption_files(
            captioner,
            paths,
            marks,
            journal=journal,
            sinks=sinks,
            failed=lambda path, reason: failures.append(f"{path} {reason}"),
        )


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())


def counts(summary: Summary) -> tuple[int, int, int]:
    return summary.captioned, summary.known, summary.failed


def test_a_broken_run_goes_on_to_the_same_lines(captioner: ReCap, folder: Path, tmp_path: Path):
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    assert counts(run(captioner, folder, whole)) == (18, 0, 0)
    assert all(json.loads(line)["caption"] == captioner.caption(json.loads(line)["path"]).text for line in lines(whole))
    moments = random.Random(0)
    done = 0
    while done < 18:
        after = moments.randint(0, 6)
        try:
            run(captioner, folder, out, [Stop(done + after)])
        except KeyboardInterrupt:
            # the line was written before anybody was told
            assert len(lines(out)) == done + after + 1
            done = len(lines(out))
            with out.open("ab") as file:
                file.write(b'{"path": "torn')
        else:
            break
    run(captioner, folder, out)
    assert lines(out) == lines(whole)
    assert counts(run(captioner, folder, out)) == (0, 18, 0)
    assert lines(out) == lines(whole)


def test_renamed_and_touched_files_are_not_done_again(captioner: ReCap, folder: Path, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    run(captioner, folder, out)
    (folder / "sub").mkdir()
    (folder / "red0.png").rename(folder / "sub" / "rouge.png")
    shutil.copy(folder / "blue0.png", folder / "bleu.png")
    os.utime(folder / "green0.png", (1, 1))
    assert counts(run(captioner, folder, out)) == (0, 19, 0)
    fresh = tmp_path / "fresh.jsonl"
    run(captioner, folder, fresh)
    assert lines(out) == lines(fresh)


def test_changed_files_are_done_again(captioner: ReCap, folder: Path, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    run(captioner, folder, out)
    shutil.copy(folder / "blue0.png", tmp_path / "blue.png")
    shutil.copy(folder / "red1.png", folder / "blue0.png")
    (folder / "green0.png").write_bytes(b"no picture")
    (tmp_path / "blue.png").rename(folder / "zzz.png")  # the content that blue0.png had
    failed: list[str] = []
    assert counts(run(captioner, folder, out, failed=failed)) == (0, 18, 1)
    assert [line.split()[0] for line in failed] == [str(folder / "green0.png")]
    captions = {json.loads(line)["path"]: json.loads(line)["caption"] for line in lines(out)}
    assert str(folder / "green0.png") not in captions
    assert "red" in captions[str(folder / "blue0.png")]
    assert "blue" in captions[str(folder / "zzz.png")]
    assert len(lines(out)) == 18


def test_captions_of_pictures_not_named_now_stay(captioner: ReCap, folder: Path, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    run(captioner, folder, out)
    other = tmp_path / "other"
    other.mkdir()
    (folder / "red0.png").rename(other / "red.png")
    assert counts(run(captioner, other, out)) == (0, 1, 0)
    paths = {json.loads(line)["path"] for line in lines(out)}
    assert str(other / "red.png") in paths
    assert str(folder / "red0.png") not in paths
    assert len(paths) == 18


def test_sinks_get_everything_once_a_run(captioner: ReCap, folder: Path, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(captioner, folder, out, [Stop(4)])
    sink = Collector()
    run(captioner, folder, out, [sink])
    assert sink.closed
    assert sorted(record.path for record in sink.records) == sorted(map(str, folder.glob("*.png")))
    assert {record.path: record.as_caption() for record in sink.records} == {
        str(path): captioner.caption(path) for path in folder.glob("*.png")
    }


def test_a_sink_may_write_into_the_picture(captioner: ReCap, folder: Path, tmp_path: Path):
    class Comment:
        def add(self, record: Record) -> None:
            content = Path(record.path).read_bytes()
            if not content.endswith(b"captioned"):
                Path(record.path).write_bytes(content + b"captioned")

        def close(self) -> None:
            pass

    out = tmp_path / "out.jsonl"
    assert counts(run(captioner, folder, out, [Comment()])) == (18, 0, 0)
    assert len(lines(out)) == 18
    assert counts(run(captioner, folder, out, [Comment()])) == (0, 18, 0)
    assert counts(run(captioner, folder, out)) == (0, 18, 0)


def test_the_bar_of_a_long_run_does_not_count_the_index(
    captioner: ReCap, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert isinstance(captioner.datastore, Datastore)
    captioner.datastore.set_index("flat")
    searcher, built = captioner.datastore._searcher, []

    def begin(*given: object, **options: object) -> object:
        built.append(searcher._index is not None)
        return progress_bar(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("recap.batch.run.progress_bar", begin)
    run(captioner, folder, tmp_path / "short.jsonl")
    assert built == [False]
    assert searcher._index is None, "a few pictures need none"
    shutil.copytree(folder, folder / "again")
    run(captioner, folder, tmp_path / "long.jsonl")
    assert built == [False, True]


def test_without_a_journal_nothing_is_remembered(captioner: ReCap, folder: Path):
    sink = Collector()
    marks = provenance(captioner, "p")
    paths = sorted(map(str, folder.glob("*.png")))
    for _ in range(2):
        summary = caption_files(captioner, paths, marks, sinks=[sink])
        assert counts(summary) == (18, 0, 0)
    assert [record.path for record in sink.records] == 2 * paths
    assert "18 captioned" in str(summary)


class Scripted:
    """A language model that says one thing; two of the same name may say different ones."""

    name, completes, selection = "scripted", False, "likely"

    def __init__(self, text: str, fingerprint: str) -> None:
        self.text, self.fingerprint = text, fingerprint

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        return [[Draft(self.text, -1.0)] for _ in prompts]


def test_a_run_is_not_continued_by_another_language_model_of_the_same_name(
    captioner: ReCap, folder: Path, tmp_path: Path
):
    one, two = (
        captioner.configured(language_model=Scripted(text, text[:5] * 8), candidates="lm")
        for text in ("first words", "other words")
    )
    out = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(one, folder, out, [Stop(3)])
    before = out.read_bytes()
    with pytest.raises(InputError, match=r"language model fingerprint firstfirstfirstf, now otherotherothero\)"):
        run(two, folder, out)
    assert out.read_bytes() == before
    assert counts(run(one, folder, out)) == (14, 4, 0)


def test_a_run_of_a_version_that_did_not_note_the_model_goes_on(captioner: ReCap, folder: Path, tmp_path: Path):
    twin = captioner.configured(language_model=Scripted("first words", "f" * 64), candidates="lm")
    out = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(twin, folder, out, [Stop(3)])
    records = [json.loads(line) for line in out.read_text().splitlines()]
    for record in records:
        assert record["generated_by"].pop("language_model_fingerprint") == "f" * 16
    out.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert counts(run(twin, folder, out)) == (14, 4, 0)
    replaced = captioner.configured(language_model=Scripted("other words", "e" * 64), candidates="lm")
    with pytest.raises(InputError, match="language model fingerprint"):
        run(replaced, folder, out)


@pytest.fixture
def pictures(new_pictures: dict[str, Path], tmp_path: Path) -> list[str]:
    """A red and a blue wall, and a file that is no picture."""
    copies = [shutil.copy(new_pictures[name], tmp_path / f"{name}.png") for name in ("red", "blue")]
    (tmp_path / "broken.png").write_bytes(b"")
    return [*map(str, copies), str(tmp_path / "broken.png")]


def test_captions_go_everywhere_at_once_and_are_resumed(captioner: ReCap, pictures: list[str], tmp_path: Path):
    warnings: list[str] = []
    job = CaptionJob(out=tmp_path / "out.jsonl", sidecars=True, prefix="art: ", html=tmp_path / "page.html")
    first = job.run(captioner, "walls", pictures, warn=warnings.append)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["path"] for record in records] == pictures[:2]
    assert (tmp_path / "red.txt").read_text().strip() == f"art: {records[0]['caption']}"
    assert records[1]["caption"] in (tmp_path / "page.html").read_text()
    assert job.errors_file == tmp_path / "errors.jsonl"
    assert [json.loads(line)["path"] for line in job.errors_file.read_text().splitlines()] == pictures[2:]
    again = job.run(captioner, "walls", pictures, warn=warnings.append)
    assert [(done.captioned, done.known, done.failed) for done in (first, again)] == [(2, 0, 1), (0, 2, 1)]
    assert warnings == [], "the list beside the output has them"


def test_without_an_output_failures_are_warnings(captioner: ReCap, pictures: list[str]):
    warnings: list[str] = []
    job = CaptionJob()
    assert job.errors_file is None
    assert job.run(captioner, "walls", pictures[1:], warn=warnings.append).failed == 1
    assert [message.partition(": ")[0] for message in warnings] == pictures[2:]


class Interrupt:
    """A sink during which the user gives up."""

    def add(self, record: Record) -> None:
        raise KeyboardInterrupt

    def close(self) -> None:
        pass


def test_an_interrupted_run_says_what_is_kept(captioner: ReCap, pictures: list[str], tmp_path: Path):
    warnings: list[str] = []
    job = CaptionJob(out=tmp_path / "out.jsonl")
    with pytest.raises(KeyboardInterrupt):
        job.run(captioner, "walls", pictures, printer=Interrupt(), warn=warnings.append)
    assert warnings == [f"1 captions are kept in {tmp_path / 'out.jsonl'}; the same command goes on from there"]
    assert job.run(captioner, "walls", pictures).known == 1


def test_a_minimum_needs_a_calibrated_pack(captioner: ReCap, pictures: list[str], tmp_path: Path):
    with pytest.raises(InputError, match="no calibration"):
        CaptionJob(out=tmp_path / "out.jsonl", min_confidence=0.5).run(captioner, "walls", pictures)
    assert not (tmp_path / "out.jsonl").exists()
