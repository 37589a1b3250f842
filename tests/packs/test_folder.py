"""Packs on disk: their files, what is refused, and several processes that change one, some of them killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recap import ReCap
from recap.alignment import PairStatistics
from recap.errors import DiskFullError, EncoderMismatchError, OfflineError, PackError
from recap.packs import captions
from recap.packs import folder as pack
from recap.packs.config import new_generation
from recap.packs.verify import verify
from recap.types import Pair


def change(folder: Path, **values: object) -> None:
    config = json.loads((folder / pack.CONFIG).read_text())
    (folder / pack.CONFIG).write_text(json.dumps({**config, **values}))


def test_a_pack_is_made_of_plain_files(folder: Path):
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "alignment.safetensors",
        "config.json",
        "datastore",
        "pictures.parquet",
        "pictures.safetensors",
        "statistics.safetensors",
    }
    card = (folder / "README.md").read_text()
    assert "walls (54)" in card
    assert "procrustes, fitted on 54 pairs" in card
    assert not list(folder.rglob("*.pkl"))


def test_saving_does_not_touch_foreign_folders(folder: Path, tmp_path: Path):
    captioner = ReCap.from_pretrained(folder)
    precious = tmp_path / "photos"
    precious.mkdir()
    (precious / "holiday.jpg").write_bytes(b"precious")
    with pytest.raises(PackError, match="other things than a pack"):
        captioner.save_pretrained(precious)
    (precious / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(PackError, match=r"such as holiday\.jpg"):
        captioner.save_pretrained(precious)
    assert (precious / "holiday.jpg").read_bytes() == b"precious"
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(PackError, match="format None"):
        captioner.save_pretrained(model)
    with pytest.raises(PackError, match="is a file"):
        captioner.save_pretrained(precious / "holiday.jpg")


def test_a_failed_save_leaves_the_old_pack(
    folder: Path, monkeypatch: pytest.MonkeyPatch, new_pictures: dict[str, Path]
):
    captioner = ReCap.from_pretrained(folder)
    before = captioner.caption(new_pictures["red"])

    def full(_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pack, "new_card", full)
    with pytest.raises(DiskFullError, match=f"no room left on the disk to write {folder}"):
        captioner.save_pretrained(folder)
    assert ReCap.from_pretrained(folder).caption(new_pictures["red"]) == before
    assert {path.name for path in folder.parent.iterdir()} == {"pack", ".pack.lock"}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"format": 99}, PackError, "format 99 is not known"),
        ({"image_fingerprint": "0" * 64}, EncoderMismatchError, "another version of the image encoder"),
        ({"text_fingerprint": "0" * 64}, EncoderMismatchError, "another version of the text encoder"),
        ({"settings": {"k": -1}}, PackError, r"config\.json: .*at least 1"),
        ({"settings": {"k": "x"}}, PackError, r"config\.json: .*wrong kind"),
    ],
)
def test_a_pack_that_does_not_fit_says_why(folder: Path, values: dict[str, object], error: type, message: str):
    change(folder, **values)
    with pytest.raises(error, match=message):
        ReCap.from_pretrained(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 1}'])
def test_a_damaged_config(folder: Path, content: str):
    (folder / pack.CONFIG).write_text(content)
    with pytest.raises(PackError, match=r"config\.json"):
        ReCap.from_pretrained(folder)


@pytest.mark.parametrize("name", ["alignment.safetensors", "statistics.safetensors", "datastore/manifest.json"])
def test_a_missing_file_is_named(folder: Path, name: str):
    (folder / name).unlink()
    with pytest.raises(PackError, match=Path(name).name):
        ReCap.from_pretrained(folder)


def test_another_map_comes_from_the_statistics_of_the_pack(folder: Path, pairs: list[Pair], encoder_folder: Path):
    direct = ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}", method="ols")
    loaded = ReCap.from_pretrained(folder).configured(method="ols")
    np.testing.assert_allclose(loaded.alignment.W_, direct.alignment.W_, atol=1e-6)


def test_hub_names_and_folders_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(PackError, match="no such folder"):
        ReCap.from_pretrained("my-pack")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(OfflineError, match="someone/some-pack"):
        ReCap.from_pretrained("someone/some-pack")


Fit = Callable[..., ReCap]


def problems(folder: Path) -> list[str]:
    return [check.problem for check in verify(folder) if check.problem]


def update_command(folder: Path, pairs: Path) -> list[str]:
    options = ["--update", str(folder), "--no-calibrate"]
    return [sys.executable, "-m", "recap.cli.main", "fit", str(pairs), *options]


@pytest.fixture
def more_pairs(pairs_folder: Path, tmp_path: Path) -> list[Path]:
    """Files of pairs that are not in the pack: two pictures each, with a caption of their own."""
    files = []
    for number, colour in enumerate(["red", "green", "blue"]):
        file = tmp_path / f"more{number}.jsonl"
        rows = [
            {"image": str(pairs_folder / f"{colour}{place}.png"), "caption": f"{colour} wall {place} again"}
            for place in range(2)
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files.append(file)
    return files


def test_updates_at_once_all_come_in(folder: Path, more_pairs: list[Path]) -> None:
    before = PairStatistics.load(folder / pack.STATISTICS).pairs
    running = [subprocess.Popen(update_command(folder, file), stderr=subprocess.PIPE) for file in more_pairs]
    messages = [process.communicate()[1].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], messages
    assert problems(folder) == []
    assert PairStatistics.load(folder / pack.STATISTICS).pairs == before + 6
    texts = {row.text for row in pack.read_own_datastore(folder)}
    assert {f"{colour} wall {place} again" for colour in ("red", "green", "blue") for place in (0, 1)} <= texts


def test_a_pack_that_is_replaced_while_it_is_read_is_read_again(
    fit: Fit, pairs: list[Pair], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer, loads = fit(pairs[:9]), []
    load = PairStatistics.load

    def replaced_meanwhile(path: Path) -> PairStatistics:
        loads.append(path)
        if len(loads) == 1:
            fewer.save_pretrained(folder)
        return load(path)

    monkeypatch.setattr(PairStatistics, "load", replaced_meanwhile)
    captioner = ReCap.from_pretrained(folder)
    assert len(loads) == 2
    assert captioner.statistics.pairs == captioner.alignment.n_pairs_ == 27


def test_a_pack_that_never_rests_is_given_up(
    fit: Fit, pairs: list[Pair], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = PairStatistics.load

    def restless(path: Path) -> PairStatistics:
        config = json.loads((folder / pack.CONFIG).read_text())
        (folder / pack.CONFIG).write_text(json.dumps({**config, "generation": new_generation()}))
        return load(path)

    monkeypatch.setattr(PairStatistics, "load", restless)
    with pytest.raises(PackError, match="again and again"):
        pack.read(folder)


def test_a_stale_captioner_does_not_overwrite(folder: Path, pairs: list[Pair]) -> None:
    one, other = ReCap.from_pretrained(folder), ReCap.from_pretrained(folder)
    one.forget([pairs[0].id])
    one.save_pretrained(folder)
    other.forget([pairs[1].id])
    with pytest.raises(PackError, match="changed by another process"):
        other.save_pretrained(folder)
    assert problems(folder) == []


def test_the_lock_may_be_entered_again_and_by_another_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    with pack.changing(folder), pack.changing(tmp_path / "alias"), pack.changing(folder):
        assert (tmp_path / ".pack.lock").exists()
    assert not (tmp_path / ".alias.lock").exists()


def test_leftovers_of_killed_processes_go(folder: Path, tmp_path: Path, fit: Fit, pairs: list[Pair]) -> None:
    """An unfinished card made a pack refuse updates for ever, and unfinished packs stayed beside it."""
    inside, beside = folder / ".README.md.0123456789ab.tmp", tmp_path / ".pack.0123456789ab.tmp"
    inside.write_text("half a card")
    (beside / "datastore").mkdir(parents=True)
    (beside / "datastore" / "segment-00001.parquet").write_text("captions that somebody wanted to be forgotten")
    half = folder / ".datastore.0123456789ab.tmp"
    half.mkdir()
    others = tmp_path / ".pack2.0123456789ab.tmp"
    others.mkdir()
    pack.check_target(folder)
    captioner = ReCap.from_pretrained(folder)
    captioner.forget([pairs[0].id])
    captioner.save_pretrained(folder)
    assert not inside.exists()
    assert not beside.exists()
    assert not half.exists()
    assert others.exists()


def test_adding_captions_tidies_up_too(folder: Path, tmp_path: Path) -> None:
    for path in (folder / ".config.json.0123456789ab.tmp", tmp_path / ".pack.0123456789ab.tmp"):
        path.write_text("")
    with captions.changing(folder):
        pass
    assert not [path for path in (*folder.iterdir(), *tmp_path.iterdir()) if path.suffix == ".tmp"]


def test_the_only_copy_of_a_pack_is_never_taken_for_a_leftover(folder: Path, tmp_path: Path) -> None:
    """Without an exchange of names, a kill leaves the old pack under a temporary name and nothing in its place."""
    kept = folder.rename(tmp_path / ".pack.0123456789ab.tmp")
    with pack.changing(folder):
        assert (kept / pack.CONFIG).exists()
    assert (kept / pack.CONFIG).exists()


def test_foreign_hidden_files_are_still_foreign(folder: Path) -> None:
    (folder / ".holiday.jpg.0123456789ab.tmp").write_text("")
    with pytest.raises(PackError, match="other things than a pack"):
        pack.check_target(folder)
