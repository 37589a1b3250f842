from __future__ import annotations

from pathlib import Path

import pytest

from recap.errors import InputError
from recap.server.config import LOOPBACK_NAMES, configure, is_loopback, read_keys


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_is_this_machine_only(host: str):
    assert is_loopback(host)
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))


def test_keys_come_from_the_environment_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = "a" * 16, "b" * 20
    monkeypatch.setenv("RECAP_API_KEYS", f" {first} ,")
    (tmp_path / "keys").write_text(f"\n{second}\n{first}\n")
    assert read_keys(None) == (first,)
    assert read_keys(tmp_path / "keys") == (first, second)
    monkeypatch.delenv("RECAP_API_KEYS")
    (tmp_path / "keys").write_text("\n")
    with pytest.raises(InputError, match="holds no key"):
        read_keys(tmp_path / "keys")


def test_options_become_a_configuration(pack: Path, tmp_path: Path):
    config = configure(str(pack), "127.0.0.1", names=("Photos.Example",), editable=True, save_edits=True)
    assert (config.pack, config.save_edits) == (pack.name, pack)
    assert config.hosts == (*LOOPBACK_NAMES, "photos.example")
    assert configure("builtin", "0.0.0.0", insecure=True).hosts is None
    large = configure("builtin", "localhost", max_megabytes=400, max_queue=99)
    assert (large.max_body, large.max_held, large.max_queue) == (400_000_000, 800_000_000, 99)
    for options in ({"save_edits": True}, {"save_edits": True, "editable": True}):
        with pytest.raises(InputError, match="--save-edits goes with"):
            configure("builtin" if "editable" in options else str(pack), "localhost", **options)
    with pytest.raises(InputError, match="--insecure"):
        configure("builtin", "0.0.0.0")


def test_origins_are_checked():
    assert configure("builtin", "localhost", cors=("https://Photos.Example",)).cors == ("https://photos.example",)
    for origin, reason in (("*", "every page"), ("photos.example", "a scheme and a host"), ("https://a/b", "a scheme")):
        with pytest.raises(InputError, match=reason):
            configure("builtin", "localhost", cors=(origin,))
