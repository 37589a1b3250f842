import hashlib
import json
from pathlib import Path

import pytest
from program import recap

from recap.assets import ASSETS, Asset, LocalFile


def test_what_is_here_is_listed():
    facts = json.loads(recap("info", "--json").stdout)
    assert {item["name"] for item in facts["encoders"]} >= {"builtin", "builtin-fast", "open_clip:RN50x64/openai"}
    assert all(item["licence"] for item in facts["assets"])
    assert "language models" in recap("info").stdout


def test_what_is_on_disk_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, content in (("sound", b"weights"), ("damaged", b"wrights")):
        (tmp_path / name).write_bytes(content)
        asset = Asset(name, LocalFile(tmp_path / name), hashlib.sha256(b"weights").hexdigest())
        monkeypatch.setitem(ASSETS, name, asset)
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))
    for options, code, state in (((), 0, "yes"), (("--verify",), 1, "damaged")):
        done = recap("info", "--json", *options, code=code)
        states = {item["name"]: item["on disk"] for item in json.loads(done.stdout)["assets"]}
        assert (states["sound"], states["damaged"], states["minilm"]) == ("yes", state, "no")
    assert f"asset damaged ({tmp_path / 'damaged'}): the sha256 should be" in done.stderr
