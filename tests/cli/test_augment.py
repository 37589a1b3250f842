"""``recap augment`` on a pack of the tiny world, with the writer of the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from recap.cli.main import cli


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))


def recap(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def pack(pairs_folder: Path, encoder_folder: Path, tmp_path: Path) -> Path:
    options = ("--encoder", f"onnx:{encoder_folder}", "--validation", "0.3", "--source", "walls")
    recap("fit", pairs_folder, "--out", tmp_path / "pack", *options)
    return tmp_path / "pack"


def test_a_pack_grows_and_the_same_command_goes_on(pack: Path, pairs_folder: Path, tmp_path: Path):
    options = ("--out", tmp_path / "new", "--validation", "0.3", "--metric", "aclip-s", "--ks", "2,4", "--rounds", "1")
    first = recap("augment", pack, pairs_folder, *options)
    lines = [line.split("\t") for line in first.stdout.splitlines()]
    assert lines[0] == ["round", "k", "score", "added", "synthetic in the prompt"]
    assert [line[0] for line in lines[1:]] == ["0", "1"]
    added = int(lines[2][3])
    listed = recap("datastore", "list", tmp_path / "new", "--synthetic", "--json").stdout.splitlines()
    assert len(listed) == added > 0
    assert all(json.loads(line)["synthetic"] for line in listed)
    old, new = (json.loads(recap("pack", "info", name, "--json").stdout) for name in (pack, tmp_path / "new"))
    assert new["captions"] == old["captions"] + added
    assert new["pairs"] == old["pairs"], "the map stays as it is"
    assert new["settings"]["k"] == int(lines[2][1])
    assert {path.name for path in (tmp_path / "new.rounds").iterdir()} >= {"run.json", "round-1-from-0.json"}
    assert recap("augment", pack, pairs_folder, *options).stdout == first.stdout
    assert all("ok" in line for line in recap("pack", "verify", tmp_path / "new").stdout.splitlines())


def test_values_of_k_are_numbers(pack: Path, pairs_folder: Path, tmp_path: Path):
    done = recap("augment", pack, pairs_folder, "--out", tmp_path / "new", "--ks", "few", code=2)
    assert "--ks few: expected whole numbers" in done.stderr
