"""The map of the house and its recipes, compared with the house."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "src" / "recap"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its head."""
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]


def test_the_map_names_every_room():
    named = {name.rstrip("/") for row in rows("The map of the house") for name in re.findall(r"`([\w./]+)`", row[0])}
    there = {path.name for path in HOUSE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert named == there - {"__init__.py", "__main__.py", "__pycache__"}


def test_the_modules_it_names_are_in_their_rooms():
    for room, _, where in rows("The map of the house"):
        folder = HOUSE / re.findall(r"`([\w./]+)`", room)[0] if room.endswith("/`") else HOUSE
        for name in re.findall(r"`(\w+(?:\.py|/))`", where):
            assert (folder / name).exists(), f"{room}: {name}"


RECIPES = rows("Twelve typical changes")


@pytest.mark.parametrize("recipe", RECIPES, ids=[recipe[0] for recipe in RECIPES])
def test_a_recipe_has_three_files_at_most_and_they_are_there(recipe: list[str]):
    _, files, what = recipe
    names = re.findall(r"`([\w./]+)`", files)
    assert 1 <= len(files.split(", ")) <= 3
    for name in names:
        place = Path(name).parent if "NAME" in name else Path(name)
        assert any((folder / place).exists() for folder in (ROOT, HOUSE)), name
    code = "".join(path.read_text(encoding="utf-8") for path in HOUSE.rglob("*.py"))
    code += (ROOT / "tests/datastore/conftest.py").read_text(encoding="utf-8")
    for name in re.findall(r"`(\w*[A-Z]\w*)`", what):
        assert re.search(rf"\b(class {name}\b|{name}\b[^=\n]*=)", code), name


def test_there_are_twelve():
    assert len(RECIPES) == 12
