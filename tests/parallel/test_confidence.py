"""Which pictures the confidence is fitted on; tests of the command compare it with that of one machine."""

from __future__ import annotations

import numpy as np
import pytest

from recap.captioner import ReCap
from recap.encoders import Encoder
from recap.errors import RecapWarning
from recap.parallel.confidence import Fitted, SomePictures
from recap.types import Pair


def fitted(encoder: Encoder, pairs: list[Pair]) -> list[Fitted]:
    vectors = encoder.encode_images([pair.image for pair in pairs])
    return [
        Fitted(pair.id, f"{number * 37 % 101:064x}", vector, encoder.encode_texts(list(pair.captions)))
        for number, (pair, vector) in enumerate(zip(pairs, vectors, strict=True))
    ]


def test_the_same_pictures_are_kept_in_any_order_and_come_in_their_own(encoder: Encoder, pairs: list[Pair]):
    given = fitted(encoder, pairs)
    expected = sorted(given, key=lambda item: item.sha256)[:7]
    for order in (given, given[::-1]):
        some = SomePictures(7)
        for start in range(0, len(order), 5):
            some.take(order[start : start + 5])
        known = some.known()
        assert known.ids == tuple(item.id for item in order if item in expected)
        assert len(known.references) == sum(known.counts)
        assert (known.images == np.stack([item.vector for item in order if item in expected])).all()


def test_too_few_pictures_are_a_warning(encoder: Encoder, pairs: list[Pair]):
    captioner = ReCap.fit(pairs, encoder=encoder, language_model=None, method="ols")
    some = SomePictures()
    some.take(fitted(encoder, pairs))
    with pytest.warns(RecapWarning, match="no confidence: confidence needs at least 20 pictures"):
        assert some.calibration(captioner) is None
