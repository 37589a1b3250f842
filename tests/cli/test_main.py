import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from program import recap

from recap.cli.main import cli

needs_ct2 = pytest.mark.skipif(find_spec("ctranslate2") is None, reason="needs the extra ct2")


@pytest.fixture(scope="module")
def pack(pairs_folder: Path, encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "pack"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECAP_CACHE", str(tmp_path_factory.mktemp("cache")))
        done = recap("fit", pairs_folder, "--out", folder, "--encoder", f"onnx:{encoder_folder}", "--method", "ols")
        assert "ols fitted on 54 pairs of 18 pictures" in done.stderr
        assert done.stdout == ""
    return folder


def test_help_imports_nothing_heavy():
    program = "import sys, recap.cli.main; print(sorted({'numpy', 'torch', 'faiss', 'onnxruntime'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    command = [sys.executable, "-m", "recap", "--help"]
    assert "caption" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_help_of_a_command_imports_no_encoder():
    program = (
        "import sys\nfrom recap.cli.main import cli\n"
        "cli.main(['caption', '--help'], standalone_mode=False)\n"
        "print(sorted({'PIL', 'tqdm', 'recap.encoders', 'recap.batch.run'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "parquet" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_one_caption_imports_only_what_it_needs(pack: Path, new_pictures: dict[str, Path]):
    program = (
        "import sys\nfrom recap.cli.main import cli\n"
        f"cli.main(['caption', '--pack', {str(pack)!r}, {str(new_pictures['red'])!r}], standalone_mode=False)\n"
        "unwanted = {'pandas', 'faiss', 'tqdm', 'recap.encoders.fetching', 'recap.cli.fit'}\n"
        "print(sorted(unwanted & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "red" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[-1] == "[]"


def test_caption_prints_path_and_caption(pack: Path, new_pictures: dict[str, Path]):
    done = recap("caption", "--pack", pack, new_pictures["red"], new_pictures["blue"])
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [path for path, _ in lines] == [str(new_pictures["red"]), str(new_pictures["blue"])]
    assert "red" in lines[0][1]
    assert "blue" in lines[1][1]


def test_caption_takes_folders_globs_and_lists(pack: Path, new_pictures: dict[str, Path]):
    folder = new_pictures["red"].parent
    whole = recap("caption", "--pack", pack, folder).stdout
    assert len(whole.splitlines()) == len(new_pictures)
    assert recap("caption", "--pack", pack, f"{folder}/*.png").stdout == whole
    assert (
        recap("caption", "--pack", pack, "-", stdin="\r\n".join(sorted(map(str, new_pictures.values())))).stdout
        == whole
    )


def test_caption_json_has_everything(pack: Path, new_pictures: dict[str, Path]):
    done = recap("caption", "--pack", pack, "--json", "-k", 4, new_pictures["green"])
    (record,) = map(json.loads, done.stdout.splitlines())
    assert record["path"] == str(new_pictures["green"])
    assert "green" in record["caption"]
    assert len(record["evidence"]) == 4
    assert record["selection"] == "likely"
    assert record["score"] == record["candidates"][0]["cosine"]


def test_explain_is_for_a_reader(pack: Path, new_pictures: dict[str, Path]):
    shown = recap("caption", "--pack", pack, "--explain", new_pictures["green"]).stdout
    assert "aligned cosine" in shown
    assert "chosen as the likeliest sentence that fits the picture" in shown


def test_bad_pictures_are_named_and_counted(pack: Path, new_pictures: dict[str, Path], tmp_path: Path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"")
    done = recap("caption", "--pack", pack, bad, new_pictures["red"], tmp_path / "gone.jpg", code=1)
    assert len(done.stdout.splitlines()) == 1
    assert "bad.jpg" in done.stderr
    assert "gone.jpg" in done.stderr
    assert "2 of 3 pictures could not be read" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["caption", "--pack", "nowhere", "x.jpg"], "no such folder"),
        (["caption"], "Missing argument"),
        (["caption", "--pack", "PACK", "--lm", "magic", "x.jpg"], "unknown language model 'magic'"),
        (["caption", "--pack", "PACK", "--method", "magic", "x.jpg"], "unknown method 'magic'"),
        (["caption", "--pack", "PACK", "--selection", "likley", "x.jpg"], "did you mean likely?"),
        (["caption", "--pack", "PACK", "--out", "o", "--format", "jsonlines", "x.jpg"], "did you mean jsonl?"),
        (["experiment", "retreival", "--data", "EMPTY"], "did you mean retrieval?"),
        (["fit", "EMPTY", "--out", "o"], "no pair of a picture and a caption"),
        (["fit", "EMPTY", "--out", "o", "--encoder", "magic"], "no pair"),
        pytest.param(["convert", "nowhere", "--out", "o"], "nowhere", marks=needs_ct2),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(pack: Path, tmp_path: Path, arguments: list[str], message: str):
    places = {"PACK": str(pack), "EMPTY": str(tmp_path)}
    done = recap(*(places.get(argument, argument) for argument in arguments), code=2)
    assert message in done.stderr
    assert done.stdout == ""


EARLY = """
import sys
from recap.cli.main import main
sys.argv = ["recap", *sys.argv[1:]]
try:
    main()
finally:
    print(sorted({"onnxruntime", "faiss", "xllamacpp", "torch"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["caption", "nofile.jpg", "neither.jpg"], "nofile.jpg: there is no such file"),
        (["caption", "PICTURE", "--lm", "gpt4"], "unknown language model 'gpt4'"),
        (["caption", "PICTURE", "--method", "foo"], "unknown method 'foo'"),
        (["retrieve", "nofile.jpg"], "nofile.jpg"),
        (["fit", "PAIRS", "--out", "o", "--lm", "gpt4"], "unknown language model 'gpt4'"),
        (["fit", "PAIRS", "--out", "o", "--method", "foo"], "unknown method 'foo'"),
        (["serve", "--lm", "gpt4"], "unknown language model 'gpt4'"),
        (["datastore", "add", "builtin", "x.txt"], "save_pretrained('mine')"),
    ],
)
def test_a_mistake_is_told_before_anything_is_loaded(
    pairs_folder: Path, new_pictures: dict[str, Path], arguments: list[str], message: str
):
    places = {"PAIRS": str(pairs_folder), "PICTURE": str(new_pictures["red"])}
    command = [sys.executable, "-c", EARLY, *(places.get(argument, argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout.strip() == "[]"


def test_fit_replaces_a_pack_only_when_it_is_forced(pack: Path, pairs_folder: Path, encoder_folder: Path):
    before = (pack / "config.json").read_bytes()
    again = ("fit", pairs_folder, "--out", pack, "--encoder", f"onnx:{encoder_folder}", "--method", "ols")
    done = recap(*again, code=2)
    assert "--force replaces it" in done.stderr
    assert f"--update {pack} adds to it" in done.stderr
    assert (pack / "config.json").read_bytes() == before
    assert "fitted on 54 pairs" in recap(*again, "--force", "--no-calibrate").stderr
    assert (pack / "config.json").read_bytes() != before


def test_a_reader_that_goes_away_is_no_error(pack: Path, new_pictures: dict[str, Path]):
    command = [sys.executable, "-m", "recap", "caption", "--pack", str(pack), str(new_pictures["red"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_full_disk_is_told():
    command = [sys.executable, "-m", "recap.cli.main", "info", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "recap: no room left on the disk to write what is printed\n")


def test_foreign_folders_are_refused_before_any_work(pairs_folder: Path, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    done = recap("fit", pairs_folder, "--out", tmp_path, "--encoder", "magic", code=2)
    assert "such as thesis.txt" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_candidates_of_no_model(pack: Path, new_pictures: dict[str, Path]):
    done = recap("caption", "--pack", pack, "--lm", "none", "--candidates", "lm", new_pictures["red"], code=2)
    assert "needs a language model" in done.stderr


def _commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _commands(below)


def test_every_command_and_option_explains_itself():
    for command in _commands(cli):
        short = command.get_short_help_str(62)
        assert short.endswith("."), f"{command.name}: the list of commands cuts its first sentence off"
        assert not short.endswith("..."), f"{command.name}: the list of commands cuts its first sentence off"
        for option in command.params:
            if isinstance(option, click.Option):
                assert len((option.help or "").split()) >= 4, f"{command.name} {option.opts}"
