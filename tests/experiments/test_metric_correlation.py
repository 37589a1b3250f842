"""The correlation of metrics against numpy's, on pictures whose references differ in number and so in their scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recap.captioner import ReCap
from recap.experiments import Setup, run_experiment
from recap.experiments.data import Bench
from recap.metrics import aclip_s, bleu, cider_d
from recap.types import Pair

pytest.importorskip("matplotlib")


@pytest.fixture
def data(tmp_path: Path, own_cache: None, make_flickr8k: Callable[..., Path], pairs: list[Pair]) -> Path:
    """Of the pictures to test, every other one has one reference, which is long."""
    short = [pair.id for pair in pairs[1::2] if pair.id.endswith("2.png")]
    uneven = [replace(pair, captions=pair.captions[-1:]) if pair.id in short else pair for pair in pairs]
    return make_flickr8k(tmp_path / "data" / "flickr8k", uneven)


def test_metrics_are_correlated_over_pictures(data: Path, encoder_folder: Path) -> None:
    setup = Setup(
        data,
        encoder=f"onnx:{encoder_folder}",
        language_model="none",
        options={"metrics": "bleu-1,cider-d,aclip-s,clip-s"},
    )
    outcome = run_experiment("metric-correlation", setup)
    bench = Bench(setup)
    train, test = bench.load("flickr8k", "train"), bench.load("flickr8k", "test")
    fitted = train.fit("procrustes")
    captioner = ReCap(bench.encoder, fitted.statistics_, train.store(bench.encoder), alignment=fitted)
    captions = [caption.text for caption in captioner.caption_vectors(test.images)]
    scores = (
        bleu(captions, test.captions)[0].per_image,
        cider_d(captions, test.captions).per_image,
        aclip_s(test.images, bench.encoder.encode_texts(captions), train.fit("procrustes")),
    )
    table = outcome.tables["metric-correlation"]
    assert [column.name for column in table.columns] == ["BLEU-1", "CIDEr-D", "aCLIP-S"]
    assert [row.label for row in table.sections[0].rows] == ["BLEU-1", "CIDEr-D", "aCLIP-S"]
    expected = np.corrcoef(scores)
    assert np.abs(expected[np.triu_indices(3, 1)]).min() > 0.01, "nothing is constant"
    found = [[cell.value for cell in row.cells] for row in table.sections[0].rows]
    np.testing.assert_allclose(np.array(found, dtype=float), expected, atol=1e-4)
    assert list(outcome.figures) == ["metric-correlation"]
    assert any("CLIP-S" in note for note in table.notes)
