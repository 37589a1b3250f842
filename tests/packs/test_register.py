"""The register of pictures as a loaded pack has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from recap import ReCap
from recap.errors import PackError
from recap.packs.register import TABLE, Pictures
from recap.types import Pair


def test_a_loaded_pack_keeps_its_own_register_when_another_takes_its_place(fit, pairs: list[Pair], tmp_path: Path):
    fit(pairs).save_pretrained(tmp_path / "pack")
    loaded = ReCap.from_pretrained(tmp_path / "pack")
    fit(pairs[::2]).save_pretrained(tmp_path / "pack")
    assert loaded.pictures is not None
    assert len(loaded.pictures) == len(pairs)
    assert [picture.id for picture in loaded.pictures] == [pair.id for pair in pairs]
    assert len(loaded.pictures) == len(pairs)


def test_a_damaged_register_is_named(folder: Path):
    content = (folder / TABLE).read_bytes()
    (folder / TABLE).write_bytes(content[:-20])
    with pytest.raises(PackError, match=r"pictures\.parquet is not a readable table"):
        Pictures.load(folder)
    (folder / TABLE).write_bytes(bytes(100) + content[100:])
    damaged = Pictures.load(folder)
    assert damaged is not None
    with pytest.raises(PackError, match=r"pictures\.parquet is not a readable table"):
        list(damaged)
