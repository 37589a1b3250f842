"""``recap embed``, and ``recap fit`` from what it writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

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
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]


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
