"""``recap pack``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from program import facts, part_of, recap

from recap import ReCap

pytestmark = pytest.mark.usefixtures("own_cache")


def test_info_shows_what_the_card_says(pack: Path):
    found = facts(pack)
    assert (found["licence"], found["author"], found["description"]) == ("CC-BY-4.0", "Ada", "Walls of one colour.")
    assert (found["captions"], found["pictures"], found["pairs"]) == (54, 18, 54)
    assert found["sources"] == {"walls": 54}
    assert found["image vectors kept"] is True
    shown = recap("pack", "info", pack).stdout
    assert "map: ols" in shown
    assert "  walls: 54" in shown


def test_verify_says_what_is_broken(pack: Path):
    assert "BROKEN" not in recap("pack", "verify", pack, "--encoder").stdout
    (pack / "statistics.safetensors").write_bytes(b"nothing")
    done = recap("pack", "verify", pack, code=1)
    assert "BROKEN  files: " in done.stdout
    records = [json.loads(line) for line in recap("pack", "verify", pack, "--json", code=1).stdout.splitlines()]
    assert {record["check"] for record in records if not record["ok"]} >= {"files", "statistics"}
    assert {record["check"] for record in records if record["ok"]} >= {"config", "map", "datastore"}


def test_merge(pack: Path, pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    for name in ("0", "12"):
        part = part_of(pairs_folder, tmp_path / f"part{name}", *name)
        recap(
            "fit",
            part,
            "--out",
            tmp_path / name,
            "--encoder",
            f"onnx:{encoder_folder}",
            "--lm",
            "none",
            "--method",
            "ols",
        )
    recap("pack", "merge", tmp_path / "0", tmp_path / "12", "--out", tmp_path / "both")
    one, other = ReCap.from_pretrained(tmp_path / "both"), ReCap.from_pretrained(pack)
    np.testing.assert_allclose(one.alignment.W_, other.alignment.W_, atol=1e-6)
    assert facts(tmp_path / "both")["sources"] == {"part0": 18, "part12": 36}
    assert "at least two" in recap("pack", "merge", pack, "--out", tmp_path / "x", code=2).stderr
