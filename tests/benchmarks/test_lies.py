"""``benchmarks/lies.py``, run as it is used."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "lies.py"


def lies(*arguments: object) -> list[str]:
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_two_files_side_by_side(tmp_path: Path):
    before = {"1": "a dog sitting on top of a sofa", "2": "a kite and a man", "3": "a wall", "4": "only here"}
    after = [{"image_id": 1, "caption": "a dog"}, {"image_id": 2, "caption": "people"}, {"image_id": 3, "caption": "a"}]
    references = {"1": ["a puppy", "it is sitting on top of a couch"], "2": ["a beach", "the sea"], "3": ["a", "b"]}
    for name, content in (("before", before), ("after", after), ("references", references)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    files = [tmp_path / "before.json", tmp_path / "after.json", "--references", tmp_path / "references.json"]
    lines = lies(*files, "--examples", 1)
    assert lines[:4] == [
        "before after people",
        "captions 3 3 3",
        "name a thing no reference names 33.3% 33.3% 33.3%",
        "such things a caption 0.667 0.333 0.333",
    ]
    assert lines[4] == 'say "sitting on top of" 33.33% 0.00% 16.67%'
    assert lines[5] == "invented most often kite 1 person 1 dog 1"
    assert lines[6] == "person 1"
    assert lines[7:] == [
        "before: 2: a kite and a man [kite, person] | a beach | the sea",
        "after: 2: people [person] | a beach | the sea",
    ]
