"""Every command and example of the README, run as it stands there."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from program import recap

from recap.assets import cache_dir

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.split("#")[0].strip() for line in re.findall(r"^recap .*", README, re.MULTILINE)]
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "open_clip" not in code]

needs_setup = pytest.mark.skipif(
    not list((cache_dir() / "packs").glob("builtin-*/config.json")), reason="run `recap setup` first"
)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the one the README speaks of."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(folder / "examples/pictures/cat.jpg", folder / "photo.jpg")
    references = {"cat": ["a cat", "a cat looks up"], "rocket": ["a rocket", "a launch at night"]}
    (folder / "references.json").write_text(json.dumps(references))
    (folder / "candidates.json").write_text(json.dumps({"cat": "a cat", "rocket": "a rocket lifts off"}))
    (folder / "page.html").write_text('<p><img src="photo.jpg"><img src="examples/pictures/coffee.jpg"></p>')
    (folder / "captions.txt").write_text("a cat on a sofa\na cup of coffee\n")
    (folder / "more-pairs").mkdir()
    shutil.copy(folder / "photo.jpg", folder / "more-pairs/other.jpg")
    (folder / "more-pairs/other.txt").write_text("a cat again\n")
    (folder / "my-pairs").mkdir()
    for picture in (folder / "examples/pictures").glob("*.jpg"):
        shutil.copy(picture, folder / "my-pairs")
        (folder / "my-pairs" / picture.name).with_suffix(".txt").write_text(f"this is a {picture.stem}\n")
    return folder


@needs_setup
def test_commands_in_their_order(workplace: Path, monkeypatch: pytest.MonkeyPatch, web: tuple[Path, str]):
    monkeypatch.chdir(workplace)
    shutil.copy("photo.jpg", web[0])
    assert len(COMMANDS) > 15
    outputs = {}
    for command in COMMANDS:
        outputs[command] = recap(*shlex.split(command.replace("https://example.org", web[1]))[1:]).stdout
    assert "cat" in outputs["recap caption examples/pictures/cat.jpg"]
    assert "cat" in outputs["recap caption --pack my-pack photo.jpg"]
    assert "cat" in outputs["recap caption https://example.org/photo.jpg"]
    assert "rocket.jpg" in outputs['recap search "a rocket taking off" examples/'].splitlines()[0]
    assert 'alt="' in (workplace / "page.html").read_text()
    assert len((workplace / "captions.jsonl").read_text().splitlines()) == len(list(workplace.glob("examples/*/*.jpg")))
    assert (workplace / "report.html").stat().st_size > 10_000


@needs_setup
@pytest.mark.parametrize("code", EXAMPLES)
def test_python_examples(workplace: Path, monkeypatch: pytest.MonkeyPatch, code: str):
    monkeypatch.chdir(workplace)
    shutil.rmtree("my-pack", ignore_errors=True)
    random = np.random.default_rng(0)
    names = {
        "paths": ["photo.jpg"],
        "image_vectors": random.normal(size=(50, 6)),
        "text_vectors": random.normal(size=(50, 4)),
    }
    exec(code, names)
    assert "captioner" not in names or names["caption"].text


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
