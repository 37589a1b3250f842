import json
from pathlib import Path

import numpy as np
import pytest

from recap import ReCap
from recap.errors import DiskFullError, EncoderMismatchError, OfflineError, PackError
from recap.packs import folder as pack
from recap.types import Pair


@pytest.fixture
def folder(pairs: list[Pair], encoder_folder: Path, tmp_path: Path) -> Path:
    ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}", source="walls").save_pretrained(tmp_path / "pack")
    return tmp_path / "pack"


def change(folder: Path, **values: object) -> None:
    config = json.loads((folder / pack.CONFIG).read_text())
    (folder / pack.CONFIG).write_text(json.dumps({**config, **values}))


def test_a_pack_is_made_of_plain_files(folder: Path):
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "alignment.safetensors",
        "config.json",
        "datastore",
        "pictures.parquet",
        "statistics.safetensors",
    }
    card = (folder / "README.md").read_text()
    assert "walls (54)" in card
    assert "procrustes, fitted on 54 pairs" in card
    assert not list(folder.rglob("*.pkl"))


def test_saving_does_not_touch_foreign_folders(folder: Path, tmp_path: Path):
    captioner = ReCap.from_pretrained(folder)
    precious = tmp_path / "photos"
    precious.mkdir()
    (precious / "holiday.jpg").write_bytes(b"precious")
    with pytest.raises(PackError, match="other things than a pack"):
        captioner.save_pretrained(precious)
    (precious / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(PackError, match=r"such as holiday\.jpg"):
        captioner.save_pretrained(precious)
    assert (precious / "holiday.jpg").read_bytes() == b"precious"
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(PackError, match="format None"):
        captioner.save_pretrained(model)
    with pytest.raises(PackError, match="is a file"):
        captioner.save_pretrained(precious / "holiday.jpg")


def test_a_failed_save_leaves_the_old_pack(
    folder: Path, monkeypatch: pytest.MonkeyPatch, new_pictures: dict[str, Path]
):
    captioner = ReCap.from_pretrained(folder)
    before = captioner.caption(new_pictures["red"])

    def full(_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pack, "new_card", full)
    with pytest.raises(DiskFullError, match=f"no room left on the disk to write {folder}"):
        captioner.save_pretrained(folder)
    assert ReCap.from_pretrained(folder).caption(new_pictures["red"]) == before
    assert {path.name for path in folder.parent.iterdir()} == {"pack", ".pack.lock"}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"format": 99}, PackError, "format 99 is not known"),
        ({"image_fingerprint": "0" * 64}, EncoderMismatchError, "another version of the image encoder"),
        ({"text_fingerprint": "0" * 64}, EncoderMismatchError, "another version of the text encoder"),
        ({"settings": {"k": -1}}, PackError, r"config\.json: .*at least 1"),
        ({"settings": {"k": "x"}}, PackError, r"config\.json: .*wrong kind"),
    ],
)
def test_a_pack_that_does_not_fit_says_why(folder: Path, values: dict[str, object], error: type, message: str):
    change(folder, **values)
    with pytest.raises(error, match=message):
        ReCap.from_pretrained(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 1}'])
def test_a_damaged_config(folder: Path, content: str):
    (folder / pack.CONFIG).write_text(content)
    with pytest.raises(PackError, match=r"config\.json"):
        ReCap.from_pretrained(folder)


@pytest.mark.parametrize("name", ["alignment.safetensors", "statistics.safetensors", "datastore/manifest.json"])
def test_a_missing_file_is_named(folder: Path, name: str):
    (folder / name).unlink()
    with pytest.raises(PackError, match=Path(name).name):
        ReCap.from_pretrained(folder)


def test_another_map_comes_from_the_statistics_of_the_pack(folder: Path, pairs: list[Pair], encoder_folder: Path):
    direct = ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}", method="ols")
    loaded = ReCap.from_pretrained(folder).configured(method="ols")
    np.testing.assert_allclose(loaded.alignment.W_, direct.alignment.W_, atol=1e-6)


def test_hub_names_and_folders_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(PackError, match="no such folder"):
        ReCap.from_pretrained("my-pack")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(OfflineError, match="someone/some-pack"):
        ReCap.from_pretrained("someone/some-pack")
