from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap import ReCap
from recap.datastore import Datastore
from recap.encoders import Encoder, load_encoder
from recap.errors import InputError, PackError
from recap.packs.verify import verify
from recap.types import Pair


@pytest.fixture
def fit(encoder: Encoder):
    return lambda pairs, **options: ReCap.fit(pairs, encoder=encoder, source="walls", language_model=None, **options)


def same(one: ReCap, other: ReCap) -> None:
    """Both have the same map, means and captions, whatever the order of these."""
    np.testing.assert_allclose(one.alignment.W_, other.alignment.W_, atol=1e-6)
    np.testing.assert_allclose(one.alignment.image_mean_, other.alignment.image_mean_, atol=1e-6)
    np.testing.assert_allclose(one.alignment.text_mean_, other.alignment.text_mean_, atol=1e-6)
    assert one.statistics.pairs == pytest.approx(other.statistics.pairs)
    rows = [sorted((row.text, row.source, row.image_id) for row in captioner.datastore) for captioner in (one, other)]
    assert rows[0] == rows[1]
    assert {p.id for p in one.pictures} == {p.id for p in other.pictures}


def test_the_usual_map_keeps_a_space_that_both_sides_share(
    fit, pairs: list[Pair], shared_encoder_folder: Path, recwarn: pytest.WarningsRecorder
) -> None:
    assert fit(pairs).alignment.method == "procrustes"
    shared = load_encoder(f"onnx:{shared_encoder_folder}")
    recwarn.clear()
    options = {"encoder": shared, "language_model": None}
    assert ReCap.fit(pairs[:5], **options).settings.method == "whitened"
    assert not [warning for warning in recwarn if "few to align" in str(warning.message)]
    assert ReCap.fit(pairs, **options, method="procrustes").alignment.method == "procrustes"


@pytest.mark.parametrize("method", ["procrustes", "ols", "ridge", "whitened"])
def test_an_update_through_the_disk_equals_a_fit_from_scratch(fit, pairs: list[Pair], tmp_path: Path, method: str):
    fit(pairs[:7], method=method).save_pretrained(tmp_path / "pack")
    for part in (pairs[7:8], pairs[8:]):
        loaded = ReCap.from_pretrained(tmp_path / "pack")
        loaded.update(part, source="walls")
        loaded.save_pretrained(tmp_path / "pack")
    same(ReCap.from_pretrained(tmp_path / "pack"), fit(pairs, method=method))
    assert not [check.problem for check in verify(tmp_path / "pack") if check.problem]


@pytest.mark.parametrize("method", ["procrustes", "ols"])
@pytest.mark.parametrize("keep", [True, False])
def test_what_is_forgotten_was_never_there(fit, pairs: list[Pair], tmp_path: Path, method: str, keep: bool):
    fit(pairs, method=method, keep_vectors=keep).save_pretrained(tmp_path / "pack")
    loaded = ReCap.from_pretrained(tmp_path / "pack")
    gone = [pairs[0], pairs[5], pairs[17]]
    assert loaded.forget([pair.id for pair in gone], None if keep else pairs) == 9
    loaded.save_pretrained(tmp_path / "pack")
    again = ReCap.from_pretrained(tmp_path / "pack")
    same(again, fit([pair for pair in pairs if pair not in gone], method=method))
    (parquet,) = (tmp_path / "pack/datastore").glob("segment-*.parquet")
    import pyarrow.parquet

    left = pyarrow.parquet.read_table(parquet)["image_id"].to_pylist()
    assert not {pair.id for pair in gone} & set(left)
    assert (again.pictures.vectors is not None) == keep
    assert not [check.problem for check in verify(tmp_path / "pack") if check.problem]


def test_updates_and_withdrawals_mix(fit, pairs: list[Pair]):
    captioner = fit(pairs[:10], keep_vectors=True)
    captioner.update(pairs[10:], source="walls")
    captioner.forget([pairs[2].id, pairs[12].id])
    captioner.update([pairs[2]], source="walls")
    same(captioner, fit([*pairs[:12], *pairs[13:]]))
    np.testing.assert_array_equal(
        np.sort(captioner.pictures.vectors, axis=0),
        np.sort(captioner.encoder.encode_images([p.image for p in pairs if p is not pairs[12]]), axis=0),
    )


def test_the_same_update_twice_changes_nothing(fit, pairs: list[Pair]):
    captioner = fit(pairs[:10])
    captioner.update(pairs[8:], source="walls")
    assert captioner.report.pictures == 8
    assert len(captioner.report.repeated_pairs) == 6
    same(captioner, fit(pairs))
    with pytest.raises(InputError, match="no new pair: 24 came before"):
        captioner.update(pairs[10:], source="walls")
    same(captioner, fit(pairs))


def test_an_update_knows_pictures_of_the_pack_under_other_names(fit, pairs: list[Pair]):
    captioner = fit(pairs[:10])
    old = pairs[3]
    report = captioner.update([Pair(old.image, (old.captions[0], "a new caption"), "other name"), *pairs[10:]])
    assert report.repeated_pictures == (("other name", old.id),)
    assert report.repeated_pairs == (("other name", old.captions[0]),)
    assert [row.text for row in captioner.datastore if row.image_id == "other name"] == ["a new caption"]


def test_worked_examples_forget_too(fit, pairs: list[Pair], new_pictures: dict[str, Path]):
    secret = Pair(new_pictures["red"], ("a wall that only I painted red",), "mine")
    captioner = fit([*pairs, secret], keep_vectors=True)
    example = captioner.settings.examples[0]
    spoken = type(example)((*example.captions, secret.captions[0]), example.caption)
    captioner.settings = captioner.settings.but(examples=(spoken, *captioner.settings.examples[1:]))
    captioner.forget(["mine"])
    assert secret.captions[0] not in str(captioner.settings)
    assert len(captioner.settings.examples) == 2


def test_only_the_very_same_pictures_are_withdrawn(fit, pairs: list[Pair], tmp_path: Path):
    captioner = fit(pairs)
    before = captioner.alignment.W_.copy()
    other = tmp_path / "other.png"
    Image.new("RGB", (9, 9), "red").save(other)
    for ids, given, message in (
        (["nobody.png"], pairs, "1 of 1 pictures are not in the pack: nobody.png"),
        ([pairs[0].id], None, f"have to be given again; missing: {pairs[0].id}"),
        ([pairs[0].id], [Pair(other, pairs[0].captions, pairs[0].id)], "not the pictures that were fitted"),
        ([pair.id for pair in pairs], pairs, "nothing would be left"),
    ):
        with pytest.raises(InputError, match=message):
            captioner.forget(ids, given)
    np.testing.assert_array_equal(captioner.alignment.W_, before)
    assert len(captioner.datastore) == 54


def test_captions_that_left_the_datastore_have_to_be_given_again(fit, pairs: list[Pair]):
    captioner = fit(pairs, keep_vectors=True)
    captioner.datastore.remove(captioner.datastore.find(image_ids=pairs[0].id)[:1])
    with pytest.raises(InputError, match="captions have left the datastore"):
        captioner.forget([pairs[0].id])
    with pytest.raises(InputError, match="captions it had then"):
        captioner.forget([pairs[0].id], [Pair(pairs[0].image, pairs[0].captions[:2], pairs[0].id)])
    assert captioner.forget([pairs[0].id], pairs) == 2
    np.testing.assert_allclose(captioner.alignment.W_, fit(pairs[1:]).alignment.W_, atol=1e-6)


def test_one_name_in_two_sources(fit, pairs: list[Pair], new_pictures: dict[str, Path]):
    captioner = fit(pairs, keep_vectors=True)
    captioner.update([Pair(new_pictures["red"], ("a red wall",), pairs[0].id)], source="others")
    with pytest.raises(InputError, match=r"several sources \(others, walls\)"):
        captioner.forget([pairs[0].id])
    assert captioner.forget([pairs[0].id], source="others") == 1
    same(captioner, fit(pairs))


def test_a_saved_pack_goes_on_being_the_home_of_its_datastore(fit, pairs: list[Pair], tmp_path: Path):
    fit(pairs).save_pretrained(tmp_path / "pack")
    captioner = ReCap.from_pretrained(tmp_path / "pack")
    store = captioner.datastore
    assert isinstance(store, Datastore)
    captioner.save_pretrained(tmp_path / "pack")
    store.remove(store.ids[:1])
    ids = store.add(["a wall"], captioner.encoder.encode_texts(["a wall"]))
    store.save(tmp_path / "pack/datastore")
    assert len(list((tmp_path / "pack/datastore").glob("segment-*.parquet"))) == 2, "only what changed is written"
    loaded = Datastore.load(tmp_path / "pack/datastore", verify=True)
    assert list(loaded) == list(store)
    assert ids[0] in loaded.ids


def test_saving_over_a_pack_that_somebody_changed_is_refused(fit, pairs: list[Pair], tmp_path: Path):
    fit(pairs).save_pretrained(tmp_path / "pack")
    captioner = ReCap.from_pretrained(tmp_path / "pack")
    other = Datastore.load(tmp_path / "pack/datastore")
    other.remove(other.ids[:1])
    other.save(tmp_path / "pack/datastore")
    with pytest.raises(PackError, match="changed by another process"):
        captioner.save_pretrained(tmp_path / "pack")
    assert len(Datastore.load(tmp_path / "pack/datastore")) == 53
