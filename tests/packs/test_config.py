"""``config.json`` as a value: what is read is what is written, and nothing else."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from recap import __version__
from recap.errors import PackError
from recap.files import check_seal
from recap.packs.config import CONFIG, PackConfig


def change(folder: Path, **values: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **values}))


def test_what_is_read_is_written_again(folder: Path) -> None:
    before, config = (folder / CONFIG).read_bytes(), PackConfig.read(folder)
    assert (config.recap_version, config.datastore, config.captions) == (__version__, "", None)
    assert config.files.keys() >= {"alignment.safetensors", "statistics.safetensors"}
    config.write()
    assert (folder / CONFIG).read_bytes() == before
    with pytest.raises(FrozenInstanceError):
        config.encoder = "other"  # type: ignore[misc]


def test_a_change_is_another_state_and_is_sealed(folder: Path) -> None:
    config = PackConfig.read(folder)
    moved = config.but(datastore="milvus:captions.db")
    assert config.is_current()
    moved.write()
    assert not config.is_current()
    assert PackConfig.read(folder) == moved
    check_seal(folder / CONFIG)


def test_configs_of_older_and_newer_versions_are_read(folder: Path) -> None:
    values = json.loads((folder / CONFIG).read_text())
    for name in ("generation", "recap_version", "about", "files", "checksum"):
        del values[name]
    (folder / CONFIG).write_text(json.dumps({**values, "invented later": 1}))
    config = PackConfig.read(folder)
    assert (config.generation, config.recap_version, config.files) == ("", "", {})
    assert config.is_current()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoder": 3}, "encoder must be a text, not int"),
        ({"datastore": "/etc/passwd"}, "begins with milvus:"),
        ({"datastore": ["milvus:a"]}, "begins with milvus:"),
        ({"settings": None}, "wrong kind"),
        ({"about": {"author": 3}}, "wrong kind"),
        ({"files": []}, "files must be a table"),
        ({"generation": 7}, "generation must be a text"),
    ],
)
def test_what_is_of_the_wrong_kind_is_named(folder: Path, values: dict[str, object], message: str) -> None:
    change(folder, **values)
    with pytest.raises(PackError, match=rf"config\.json: .*{message}"):
        PackConfig.read(folder)


def test_a_folder_without_one_is_no_pack(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"has no config\.json"):
        PackConfig.read(tmp_path)
