"""``recap embed``, and ``recap fit`` from what it writes."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from recap import ReCap
from recap.cli.main import cli


def recap(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert code == 2, result.exception
        result.stderr_bytes = str(result.exception).encode()
        return result
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_a_pack_from_vectors_is_the_pack_from_pictures(pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    encoder = ("--encoder", f"onnx:{encoder_folder}")
    vectors = tmp_path / "vectors"
    done = recap("embed", pairs_folder, "--out", vectors, *encoder, "--json")
    facts = json.loads(done.stdout)
    assert (facts["pictures"], facts["captions"], facts["broken"], facts["new"]) == (18, 54, 0, 1)
    assert json.loads(recap("embed", pairs_folder, "--out", vectors, *encoder, "--json").stdout)["new"] == 0
    options = ("--lm", "none", "--source", "walls", "--validation", "0.2")
    # vectors know their encoder
    recap("fit", vectors, "--out", tmp_path / "one", *options)
    recap("fit", pairs_folder, "--out", tmp_path / "other", *encoder, *options)
    one, other = (ReCap.from_pretrained(tmp_path / name) for name in ("one", "other"))
    np.testing.assert_allclose(one.alignment.W_, other.alignment.W_, atol=1e-6)
    assert list(one.datastore) == list(other.datastore)
    assert one.settings == other.settings
    assert one.about == other.about
    assert list(one.pictures or ()) == list(other.pictures or ())


def test_pairs_in_a_bucket_are_fitted_without_a_cluster(pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    pack = tmp_path / "pack"
    recap("fit", f"file://{pairs_folder}", "--out", pack, "--encoder", f"onnx:{encoder_folder}", "--lm", "none")
    assert len(ReCap.from_pretrained(pack).datastore) == 54
    assert {path.name for path in tmp_path.iterdir()} == {"pack", ".pack.lock"}


def test_confidence_is_fitted_on_vectors_as_on_pictures(pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    pairs = tmp_path / "pairs"
    shutil.copytree(pairs_folder, pairs)
    for path in sorted(pairs.glob("*.png")):
        pixels = np.asarray(Image.open(path)).copy()
        pixels[0, 0] ^= 7
        Image.fromarray(pixels).save(pairs / f"more-{path.name}")
        shutil.copy(path.with_suffix(".txt"), pairs / f"more-{path.stem}.txt")
    options = ("--encoder", f"onnx:{encoder_folder}", "--lm", "none", "--method", "ols")
    recap("fit", pairs, "--out", tmp_path / "one", *options)
    recap("fit", f"file://{pairs}", "--out", tmp_path / "other", *options)
    one, other = (ReCap.from_pretrained(tmp_path / name).calibration for name in ("one", "other"))
    assert one is not None
    assert other is not None
    assert (other.method, other.pictures) == (one.method, one.pictures) == ("ols", 36)
    assert other.intercept == pytest.approx(one.intercept, abs=1e-3)
    recap("fit", f"file://{pairs}", "--out", tmp_path / "plain", *options, "--no-calibrate")
    assert ReCap.from_pretrained(tmp_path / "plain").calibration is None


def test_pictures_of_a_table_may_lie_in_a_bucket(pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    table = tmp_path / "pairs.csv"
    lines = [
        f"{path.name},{path.with_suffix('.txt').read_text().splitlines()[0]}" for path in pairs_folder.glob("*.png")
    ]
    table.write_text("\n".join(["image,caption", *lines]))
    options = ("--images", f"file://{pairs_folder}", "--encoder", f"onnx:{encoder_folder}", "--lm", "none")
    recap("fit", table, "--out", tmp_path / "pack", *options)
    assert len(ReCap.from_pretrained(tmp_path / "pack").datastore) == 18
    told = recap("fit", table, "--out", tmp_path / "other", *options, "--validation", pairs_folder, code=2)
    assert "only a share" in told.stderr
    told = recap("fit", table, "--update", tmp_path / "pack", *options[:2], code=2)
    assert "on this machine" in told.stderr
    told = recap("fit", table, "--out", tmp_path / "other", "--images", tmp_path / "nowhere", code=2)
    assert "neither a folder nor a URL" in told.stderr


def test_vectors_among_the_pictures_are_no_pictures(pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    folder, captions = tmp_path / "pairs", tmp_path / "captions.txt"
    shutil.copytree(pairs_folder, folder)
    captions.write_text("a red wall")
    options = ("--out", folder / "vectors", "--encoder", f"onnx:{encoder_folder}", "--json")
    for new in (1, 0):
        facts = json.loads(recap("embed", folder, *options).stdout)
        assert (facts["pictures"], facts["captions"], facts["new"]) == (18, 54, new)
    told = recap("embed", captions, *options, code=2)
    assert f"has vectors of {folder}, which would be deleted" in told.stderr
    assert json.loads(recap("embed", captions, *options, "--restart").stdout)["captions"] == 1


def test_what_lies_elsewhere_is_captioned_without_a_cluster(
    pairs_folder: Path, new_pictures: dict[str, Path], encoder_folder: Path, tmp_path: Path
):
    folder, pack = new_pictures["red"].parent, tmp_path / "pack"
    recap("fit", pairs_folder, "--out", pack, "--encoder", f"onnx:{encoder_folder}", "--lm", "none")
    with tarfile.open(tmp_path / "new.tar", "w") as archive:
        archive.add(new_pictures["blue"], "blue.png")
    inputs = (new_pictures["green"], f"file://{new_pictures['red']}", tmp_path / "new.tar")
    lines = recap("caption", *inputs, "--pack", pack).stdout.splitlines()
    captioner = ReCap.from_pretrained(pack)
    names = {"green": inputs[0], "red": inputs[1], "blue": f"{tmp_path}/new.tar/blue"}
    expected = [f"{name}\t{captioner.caption(folder / f'{colour}.png').text}" for colour, name in names.items()]
    assert sorted(lines) == sorted(expected)
    told = recap("caption", inputs[1], "--pack", pack, "--sidecars", code=2)
    assert "not archives or URLs" in told.stderr


def test_a_cluster_does_not_caption_with_a_database_in_a_file(pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    pack = tmp_path / "pack"
    recap("fit", pairs_folder, "--out", pack, "--encoder", f"onnx:{encoder_folder}", "--lm", "none")
    config = json.loads((pack / "config.json").read_text())
    (pack / "config.json").write_text(json.dumps({**config, "datastore": "milvus:./captions.db"}))
    told = recap("caption", pairs_folder, "--pack", pack, "--ray=local", code=2)
    assert "one process at a time" in told.stderr


@pytest.mark.filterwarnings("ignore::recap.errors.RecapWarning")
def test_broken_pictures_are_named_and_the_others_go_on(pairs_folder: Path, encoder_folder: Path, tmp_path: Path):
    folder = tmp_path / "pairs"
    shutil.copytree(pairs_folder, folder)
    (folder / "red0.png").write_bytes(b"no picture")
    done = recap("embed", folder, "--out", tmp_path / "vectors", "--encoder", f"onnx:{encoder_folder}", code=1)
    assert str(folder / "red0.png") in done.stderr
    assert "17 pictures" in done.stderr
    told = recap("fit", tmp_path / "vectors", "--out", tmp_path / "pack", "--lm", "none", code=1)
    assert "1 broken" in told.stderr


@pytest.mark.parametrize("command", ["embed", "fit", "score"])
def test_a_path_is_not_taken_for_the_address_of_a_cluster(command: str, pairs_folder: Path):
    done = recap(command, "--ray", pairs_folder, code=2)
    assert "write --ray last" in done.stderr


def test_ray_and_update_do_not_go_together(pairs_folder: Path, tmp_path: Path):
    done = recap("fit", pairs_folder, "--update", tmp_path, "--ray=auto", code=2)
    assert "--ray: not with --update" in done.stderr
