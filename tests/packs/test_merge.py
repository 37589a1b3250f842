from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recap import ReCap
from recap.confidence import FEATURES, Calibration
from recap.errors import EncoderMismatchError, InputError, RecapWarning
from recap.packs.card import About
from recap.packs.merge import merge
from recap.packs.verify import verify
from recap.types import Pair

Fit = Callable[..., ReCap]


@pytest.mark.parametrize("method", ["procrustes", "ols"])
def test_joined_packs_equal_one_fit_to_all(fit: Fit, pairs: list[Pair], tmp_path: Path, method: str):
    parts = [fit(part, method=method, keep_vectors=True) for part in (pairs[:6], pairs[6:11], pairs[11:])]
    parts[0].about = About(licence="MIT", author="A", numbers={"cider_d": 1.0}, data={"pictures": 6})
    parts[1].about = About(licence="CC0-1.0", author="A", data={"pictures": 5})
    parts[2].about = About()
    merged = merge(parts)
    whole = fit(pairs, method=method)
    np.testing.assert_allclose(merged.alignment.W_, whole.alignment.W_, atol=1e-6)
    assert [row.text for row in merged.datastore] == [row.text for row in whole.datastore]
    assert merged.about == About(licence="MIT; CC0-1.0", author="A", data={"pictures": 11})
    merged.save_pretrained(tmp_path / "pack")
    assert not [check.problem for check in verify(tmp_path / "pack") if check.problem]
    merged.forget([pairs[7].id])
    rest = fit([*pairs[:7], *pairs[8:]], method=method)
    np.testing.assert_allclose(merged.alignment.W_, rest.alignment.W_, atol=1e-6)


def test_pictures_in_both_are_told(fit: Fit, pairs: list[Pair]):
    with pytest.warns(RecapWarning, match="3 pictures are in more than one"):
        merge([fit(pairs[:9]), fit(pairs[6:])])


def test_a_calibration_of_one_pack_is_dropped_and_told(fit: Fit, pairs: list[Pair]):
    parts = [fit(pairs[:9]), fit(pairs[9:])]
    parts[1].calibration = Calibration(0.0, (1.0,) * len(FEATURES), "procrustes", 20, "people")
    with pytest.warns(RecapWarning, match="recap pack calibrate"):
        assert merge(parts).calibration is None


def test_what_cannot_be_joined(fit: Fit, pairs: list[Pair], shared_encoder_folder: Path, make_world, tmp_path: Path):
    with pytest.raises(InputError, match="at least two"):
        merge([fit(pairs)])
    other = ReCap.fit(pairs, encoder=f"onnx:{make_world(tmp_path, ['a red wall'])}", language_model=None)
    with pytest.raises(EncoderMismatchError):
        merge([fit(pairs), other])
    shared = ReCap.fit(pairs, encoder=f"onnx:{shared_encoder_folder}", language_model=None)
    with pytest.raises(EncoderMismatchError):
        merge([fit(pairs), shared])
