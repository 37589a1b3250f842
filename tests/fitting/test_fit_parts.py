"""A fit in parts against one of a single part."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap.alignment import LinearAlignment
from recap.captioner import ReCap
from recap.datasets import PairFiles
from recap.encoders import Encoder
from recap.errors import EncoderMismatchError, InputError
from recap.fitting import fit as fitting
from recap.fitting import vectors as shards
from recap.fitting.embedding import embed
from recap.fitting.fit import EncodedPairs, Validation, encode_pairs
from recap.fitting.packs import fit_pack
from recap.fitting.pairs import add_statistics
from recap.fitting.vectors import VectorFolder
from recap.parallel.parts import find_parts
from recap.parallel.runners import LocalRunner, Runner


class Tree(LocalRunner):
    """Adds several sums at a time, as a cluster does, and brings results in another order."""

    def map(self, prepare, items, device="cpu"):
        return reversed(list(super().map(prepare, items, device)))

    def total(self, work, items, add):
        level = [work(item) for item in items]
        while len(level) > 1:
            level = [add(*level[start : start + 3]) for start in range(0, len(level), 3)]
        return level[0]


@pytest.fixture(scope="session")
def difficult(pairs_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs with repeated pictures and captions, broken files, and pictures without a caption."""
    folder = tmp_path_factory.mktemp("difficult") / "pairs"
    shutil.copytree(pairs_folder, folder)
    shutil.copy(folder / "red0.png", folder / "again.png")
    (folder / "again.txt").write_text("a red wall\nthis wall is red\n")
    shutil.copy(folder / "blue1.png", folder / "same.png")
    shutil.copy(folder / "blue1.txt", folder / "same.txt")
    (folder / "green0.txt").write_text("a green wall\na green wall\nthe wall is green\n")
    (folder / "broken.png").write_bytes(b"no picture")
    (folder / "broken.txt").write_text("a broken wall\n")
    shutil.copy(folder / "red1.png", folder / "silent.png")
    return folder


def compare(one: EncodedPairs, other: EncodedPairs) -> None:
    assert list(one.datastore) == list(other.datastore)
    ids = one.datastore.ids
    assert (one.datastore.raw_vectors(ids) == other.datastore.raw_vectors(ids)).all()
    for method in ("ols", "procrustes"):
        maps = [LinearAlignment.from_statistics(part.statistics, method).W_ for part in (one, other)]
        np.testing.assert_allclose(*maps, atol=1e-9)
    assert one.statistics.pairs == other.statistics.pairs
    assert list(one.pictures) == list(other.pictures)
    samples = [[(item.pair.id, item.pair.captions, item.sha256) for item in e.sample.pictures] for e in (one, other)]
    assert samples[0] == samples[1]
    same_validation(one.validation, other.validation)
    assert one.report.counts() == other.report.counts()
    assert sorted(one.report.repeated_pairs) == sorted(other.report.repeated_pairs)
    assert one.report.repeated_pictures == other.report.repeated_pictures


def same_validation(one: Validation, other: Validation) -> None:
    assert (one.ids, one.references) == (other.ids, other.references)
    assert (one.vectors == other.vectors).all()


@pytest.mark.filterwarnings("ignore::recap.errors.RecapWarning")
@pytest.mark.parametrize("runner", [LocalRunner(), Tree()])
@pytest.mark.parametrize("validation", [None, 0.3])
def test_a_fit_in_parts_is_the_same_fit(
    difficult: Path,
    encoder: Encoder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runner: Runner,
    validation: float | None,
):
    # less than a shard
    monkeypatch.setattr(fitting, "BLOCK", 3)
    monkeypatch.setattr(shards, "ROWS", 2)
    out = str(tmp_path / "vectors")
    embed(find_parts(str(difficult), size=4), out, encoder, runner=runner)
    options = {"source": "walls", "validation": validation, "keep_vectors": True}
    found = encode_pairs(VectorFolder(out, runner), encoder, **options)
    expected = encode_pairs(PairFiles(difficult), encoder, **options)
    compare(found, expected)
    assert (found.pictures.vectors == expected.pictures.vectors).all()
    reasons = sorted(str(error).replace(str(difficult), "") for error in found.problems)
    assert [reason.partition(":")[0] for reason in reasons] == ["/broken.png", "/silent.png"]


@pytest.mark.filterwarnings("ignore::recap.errors.RecapWarning")
def test_a_fit_in_parts_is_calibrated_on_the_same_pictures(
    pairs_folder: Path, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """There are more pictures than are used, so that it matters which."""
    monkeypatch.setattr("recap.fitting.pairs.SAMPLE", 25)
    many = tmp_path / "many"
    many.mkdir()
    for number, path in enumerate(sorted(pairs_folder.glob("*.png")) * 3):
        with Image.open(path) as picture:
            picture.rotate(90 * (number % 4)).resize((10 + number, 9)).save(many / f"{number}.png")
        shutil.copy(path.with_suffix(".txt"), many / f"{number}.txt")
    here = ReCap.fit(many, encoder=encoder, language_model=None, method="ols", source="many")
    there = fit_pack(f"file://{many}", tmp_path / "pack", encoder=encoder.name, language_model="none", method="ols")
    assert here.calibration is not None
    assert there.calibration is not None
    assert here.calibration.pictures == there.calibration.pictures == 25
    np.testing.assert_allclose(there.calibration.weights, here.calibration.weights, rtol=1e-4)


@pytest.mark.filterwarnings("ignore::recap.errors.RecapWarning")
def test_validation_pairs_are_not_fitted(pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    apart = tmp_path / "apart"
    apart.mkdir()
    for name in ("red0.png", "red0.txt", "blue2.png", "blue2.txt"):
        shutil.copy(pairs_folder / name, apart / f"other-{name}")
    embed(find_parts(str(pairs_folder), size=4), str(tmp_path / "vectors"), encoder)
    found = encode_pairs(VectorFolder(str(tmp_path / "vectors")), encoder, validation=PairFiles(apart))
    compare(found, encode_pairs(PairFiles(pairs_folder), encoder, validation=PairFiles(apart)))
    assert len(found.pictures) == 16


@pytest.mark.filterwarnings("ignore::recap.errors.RecapWarning")
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tar"])
def test_other_kinds_of_pairs(same_pairs: Callable[[str], Path], encoder: Encoder, tmp_path: Path, kind: str):
    path = same_pairs(kind)
    embed(find_parts(str(path), size=7), str(tmp_path / "vectors"), encoder)
    compare(encode_pairs(VectorFolder(str(tmp_path / "vectors")), encoder), encode_pairs(PairFiles(path), encoder))


@pytest.mark.filterwarnings("ignore::recap.errors.RecapWarning")
def test_a_part_may_be_empty(same_pairs: Callable[[str], Path], encoder: Encoder, tmp_path: Path):
    folder = tmp_path / "shards"
    folder.mkdir()
    shutil.copy(same_pairs("tar"), folder / "b.tar")
    for name in ("a.tar", "c.tar"):
        tarfile.open(folder / name, "w").close()
    embed(find_parts(str(folder)), str(tmp_path / "vectors"), encoder)
    assert encode_pairs(VectorFolder(str(tmp_path / "vectors")), encoder).report.pictures == 18


def test_sums_leave_their_parts_as_they_are(encoder: Encoder, pairs_folder: Path, tmp_path: Path):
    embed(find_parts(str(pairs_folder)), str(tmp_path / "vectors"), encoder)
    part = encode_pairs(VectorFolder(str(tmp_path / "vectors")), encoder).statistics
    before = part.uncentred().cross.copy()
    assert add_statistics(part, part, part).pairs == 3 * part.pairs
    assert (part.uncentred().cross == before).all()


def test_vectors_of_another_encoder_and_vectors_without_captions(
    encoder: Encoder, shared_encoder_folder: Path, pairs_folder: Path, tmp_path: Path
):
    from recap.encoders import load_encoder

    silent = tmp_path / "silent"
    silent.mkdir()
    shutil.copy(pairs_folder / "red0.png", silent)
    embed(find_parts(str(silent)), str(tmp_path / "vectors"), encoder)
    with pytest.raises(EncoderMismatchError):
        encode_pairs(VectorFolder(str(tmp_path / "vectors")), load_encoder(f"onnx:{shared_encoder_folder}"))
    with pytest.raises(InputError, match="none of the 1 pictures could be used"):
        encode_pairs(VectorFolder(str(tmp_path / "vectors")), encoder)
