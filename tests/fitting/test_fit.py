from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recap import LinearAlignment, ReCap
from recap.encoders import Encoder
from recap.errors import InputError, RecapWarning
from recap.fitting.fit import encode_pairs
from recap.types import Pair


def test_statistics_are_those_of_the_pairs(pairs: list[Pair], encoder: Encoder):
    encoded = encode_pairs(pairs, encoder)
    images = encoder.encode_images([pair.image for pair in pairs for _ in pair.captions])
    texts = encoder.encode_texts([caption for pair in pairs for caption in pair.captions])
    direct = LinearAlignment("ols").fit(images.astype(np.float64), texts.astype(np.float64))
    np.testing.assert_allclose(LinearAlignment.from_statistics(encoded.statistics, "ols").W_, direct.W_, atol=1e-6)
    assert encoded.report.counts() == {
        "pictures": 18,
        "captions": 54,
        "validation_pictures": 0,
        "broken_pairs": 0,
        "repeated_pictures": 0,
        "repeated_pairs": 0,
    }


def test_repeats_are_found_by_content(pairs: list[Pair], encoder: Encoder, tmp_path: Path):
    twin = tmp_path / "twin.png"
    shutil.copy(pairs[0].image, twin)
    more = [
        *pairs,
        Pair(twin, (pairs[0].captions[0], "another caption"), "twin"),
        Pair(twin, (pairs[0].captions[1],), "again"),
    ]
    encoded = encode_pairs(more, encoder)
    assert encoded.report.repeated_pictures == (("twin", pairs[0].id), ("again", pairs[0].id))
    assert encoded.report.repeated_pairs == (("twin", pairs[0].captions[0]), ("again", pairs[0].captions[1]))
    assert encoded.statistics.pairs == 55
    assert [row.text for row in encoded.datastore if row.image_id == "twin"] == ["another caption"]


def test_what_is_broken_is_listed_and_the_rest_is_fitted(pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    folder = tmp_path / "pairs"
    shutil.copytree(pairs_folder, folder)
    (folder / "bad.png").write_bytes(b"no picture")
    (folder / "bad.txt").write_text("a wall")
    (folder / "lonely.png").write_bytes(b"")
    (folder / "red0.txt").write_bytes(b"\xff\xfe\xfa")
    captioner = ReCap.fit(folder, encoder=encoder, language_model=None)
    messages = "\n".join(map(str, captioner.problems))
    assert len(captioner.problems) == 3
    for part in ("bad.png: not a picture", "lonely.png: no lonely.txt", "red0.txt: not UTF-8"):
        assert part in messages
    assert captioner.report.pictures == 17
    assert [line["kind"] for line in captioner.report.lines()] == ["broken"] * 3


def test_a_share_is_kept_apart_by_content_whatever_order_and_names(pairs: list[Pair], encoder: Encoder):
    first = encode_pairs(pairs, encoder, validation=0.4)
    assert 0 < len(first.validation) < 18
    assert len(first.pictures) + len(first.validation) == 18
    assert not set(first.validation.ids) & {row.image_id for row in first.datastore}
    renamed = [Pair(pair.image, pair.captions, f"new {pair.id}") for pair in reversed(pairs)]
    second = encode_pairs(renamed, encoder, validation=0.4)
    assert {name.removeprefix("new ") for name in second.validation.ids} == set(first.validation.ids)
    larger = encode_pairs(pairs, encoder, validation=0.6)
    assert set(first.validation.ids) <= set(larger.validation.ids)
    np.testing.assert_array_equal(
        first.validation.vectors,
        encoder.encode_images([pair.image for name in first.validation.ids for pair in pairs if pair.id == name]),
    )


def test_validation_pairs_of_their_own_are_never_fitted(pairs: list[Pair], encoder: Encoder):
    renamed = [Pair(pair.image, pair.captions, f"validation {pair.id}") for pair in pairs[:4]]
    encoded = encode_pairs(pairs, encoder, validation=renamed)
    assert len(encoded.validation) == 4
    assert len(encoded.pictures) == 14
    with pytest.raises(InputError, match="share of validation pictures"):
        encode_pairs(pairs, encoder, validation=1.0)


def test_fitting_with_validation_fills_the_card(pairs: list[Pair], encoder: Encoder, tmp_path: Path):
    captioner = ReCap.fit(pairs, encoder=encoder, language_model=None, validation=pairs[::3], tune=True)
    captioner.save_pretrained(tmp_path / "pack")
    loaded = ReCap.from_pretrained(tmp_path / "pack")
    assert loaded.about == captioner.about
    assert loaded.about.numbers["pictures"] == 6
    assert loaded.about.data["pictures"] == 12
    assert loaded.settings == captioner.settings
    card = (tmp_path / "pack/README.md").read_text()
    assert f"| CIDEr-D | {loaded.about.numbers['cider_d']:.1f} |" in card
    assert "Chosen on the same pictures: method" in card


def test_a_language_model_that_does_not_know_the_words_is_not_asked(pairs: list[Pair], encoder: Encoder):
    foreign = [
        replace(pair, captions=tuple(f"zorp {text} blicket wug dax" for text in pair.captions)) for pair in pairs
    ]
    with pytest.warns(RecapWarning, match="the writer knows only .* of the words of these captions"):
        captioner = ReCap.fit(foreign, encoder=encoder, calibrate=False)
    assert captioner.settings.candidates == "retrieved"
    asked = ReCap.fit(foreign, encoder=encoder, calibrate=False, candidates="lm")
    assert asked.settings.candidates == "lm"
    assert ReCap.fit(pairs, encoder=encoder, calibrate=False).settings.candidates == "both"
    assert ReCap.fit(foreign, encoder=encoder, language_model=None, calibrate=False).settings.candidates == "both"
