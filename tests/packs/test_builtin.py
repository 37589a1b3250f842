import json
from pathlib import Path

import numpy as np
import pytest

from recap import ReCap
from recap.alignment import LinearAlignment, PairStatistics
from recap.assets import ASSETS, Asset, LocalFile, cache_dir
from recap.packs.builtin import (
    CONCEPTS,
    DESCRIBED,
    SOURCE,
    builtin_pack,
    choose_captions,
    concept_sentences,
    described_captions,
    packaged_file,
)
from recap.packs.folder import ALIGNMENT, STATISTICS


def test_the_packaged_map_is_that_of_the_packaged_statistics():
    statistics = PairStatistics.load(packaged_file(STATISTICS))
    packaged = LinearAlignment.load(packaged_file(ALIGNMENT))
    solved = LinearAlignment.from_statistics(statistics, packaged.method)
    assert abs(solved.W_ - packaged.W_).max() < 1e-4
    assert packaged.W_.shape == (512, 512)
    assert statistics.pairs > 100_000


def test_captions_are_chosen_once_each_and_always_the_same():
    records = [(str(i), f"a dog number {i}") for i in range(100)]
    noisy = [*records, ("x", "  A  dog number 3. "), ("y", "word"), ("z", "long " * 26)]
    chosen = choose_captions(noisy, 10)
    assert chosen == choose_captions(noisy, 10)
    assert len(set(chosen)) == 10
    assert choose_captions(noisy, 0) == records
    assert choose_captions(noisy, 1000) == records


def test_a_caption_in_capitals_is_put_into_small_letters():
    assert choose_captions([("a", "THERE IS A CUP"), ("b", "A TV on a desk")], 0) == [
        ("a", "There is a cup"),
        ("b", "A TV on a desk"),
    ]


def test_every_picture_gives_its_most_typical_caption_before_any_gives_another():
    said = ["a dog on a beach", "a brown dog on a beach", "my best friend", "a dog on a sunny beach", "two eyes"]
    records = [(image, f"{text} {image}") for image in "pqrs" for text in said]
    first = choose_captions(records, 4)
    assert first == [(image, f"a dog on a beach {image}") for image in "pqrs"]
    images = [image for image, _ in choose_captions(records, 6)]
    assert sorted(images.count(image) for image in "pqrs") == [1, 1, 2, 2]
    assert not any("friend" in text or "eyes" in text for _, text in choose_captions(records, 12))


def test_concepts_are_sentences_each_once():
    sentences = concept_sentences()
    assert len(sentences) == len(set(sentences)) > 900
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in sentences)
    assert "An astronaut in a space suit." in sentences


def test_our_own_captions_are_sentences_about_pictures():
    captions = described_captions()
    texts = [text for texts in captions.values() for text in texts]
    assert len(captions) > 7000
    assert all(2 <= len(texts) <= 3 for texts in captions.values())
    assert all(text[0].isupper() and text.endswith(".") and text == " ".join(text.split()) for text in texts)
    assert all(2 <= len(text.split()) <= 25 for text in texts)
    assert not any(picture.startswith("coco") for picture in captions)


THINGS = ("dog", "train", "pizza", "horse", "kite", "clock", "boat", "sofa", "zebra", "lamp")
SAYINGS = ("a {} in the morning", "somebody looks at the {}", "the {} is near a wall")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a built-in pack with 24 of the 30 captions of a small COCO, in a cache of its own."""
    room = tmp_path_factory.mktemp("builtin")
    said = [(number, saying.format(thing)) for number, thing in enumerate(THINGS) for saying in SAYINGS]
    coco = room / "captions_train2014.json"
    coco.write_text(json.dumps({"annotations": [{"image_id": i, "caption": text} for i, text in said]}))
    weights = cache_dir()
    (room / "cache").mkdir()
    for folder in ("assets", "cut", "verified"):
        (room / "cache" / folder).symlink_to(weights / folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ASSETS, "coco-captions-train", Asset("coco-captions-train", LocalFile(coco)))
        patch.setenv("RECAP_CACHE", str(room / "cache"))
        yield builtin_pack(captions=24), said


def test_the_pack_is_made_of_coco_our_own_captions_and_concepts(made: tuple[Path, list[tuple[int, str]]]):
    folder, said = made
    captioner = ReCap.from_pretrained(folder)
    rows = list(captioner.datastore)
    coco = [(row.image_id, row.text) for row in rows if row.source == SOURCE]
    assert coco == choose_captions([(str(number), text) for number, text in said], 24)
    assert [row.text for row in rows if row.source == CONCEPTS] == concept_sentences()
    ours = [(row.image_id, row.text) for row in rows if row.source == DESCRIBED]
    described = described_captions()
    assert {text for _, text in ours} == {text for texts in described.values() for text in texts}
    assert all(text in described[image] for image, text in ours)
    assert len(rows) == 24 + len(ours) + len(concept_sentences())
    packaged = LinearAlignment.load(packaged_file(ALIGNMENT))
    np.testing.assert_array_equal(captioner.alignment.W_, packaged.W_)
    assert captioner.language_model.name == "writer"
    assert [path.name for path in folder.parent.iterdir() if path.suffix != ".lock"] == [folder.name]


def test_the_examples_of_the_pack_answer_with_another_caption_of_the_picture(made: tuple[Path, list[tuple[int, str]]]):
    captioner = ReCap.from_pretrained(made[0])
    rows = list(captioner.datastore)
    vectors = captioner.alignment.transform_texts(captioner.encoder.encode_texts([row.text for row in rows]))
    assert len(captioner.settings.examples) > 1
    for example in captioner.settings.examples:
        (answer,) = (row for row in rows if row.text == example.caption)
        first = next(place for place, row in enumerate(rows) if row.image_id == answer.image_id)
        others = [place for place, row in enumerate(rows) if row.image_id != answer.image_id]
        # the store keeps half the digits: near ties may change places
        cosines = vectors @ vectors[first]
        least = np.sort(cosines[others])[-len(example.captions)]
        places = [next(place for place in others if rows[place].text == text) for text in example.captions]
        assert len(set(places)) == len(places)
        assert cosines[places].min() > least - 2e-3


def test_the_fast_pack_has_the_captions_of_the_default(made: tuple[Path, list[tuple[int, str]]]):
    large, small = (ReCap.from_pretrained(path) for path in (made[0], builtin_pack("builtin-fast", captions=24)))
    assert (large.encoder.name, small.encoder.name) == ("eyes-large", "eyes")
    assert builtin_pack("builtin-large") == made[0], "the default by the name that it had before"
    assert [row.text for row in large.datastore] == [row.text for row in small.datastore]
    ids = [row.id for row in large.datastore]
    assert np.array_equal(large.datastore.raw_vectors(ids), small.datastore.raw_vectors(ids))
    assert large.looks
    assert small.looks
    packaged = LinearAlignment.load(packaged_file(ALIGNMENT, "builtin-fast"))
    np.testing.assert_array_equal(small.alignment.W_, packaged.W_)


def test_the_pack_is_made_once(made: tuple[Path, list[tuple[int, str]]]):
    folder, _ = made
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert builtin_pack() == builtin_pack(captions=24) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
