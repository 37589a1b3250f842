from __future__ import annotations

from pathlib import Path

from recap.batch import provenance
from recap.captioner import ReCap
from recap.types import Pair


def test_everything_decisive_is_in_the_hash(
    captioner: ReCap, pairs: list[Pair], encoder_folder: Path, shared_encoder_folder: Path, tmp_path: Path
):
    marks = provenance(captioner, "mine")
    assert marks["pack"] == "mine"
    assert marks["language_model"] == "none"
    assert marks["encoder"] == f"onnx:{encoder_folder}"
    captioner.save_pretrained(tmp_path / "pack")
    assert provenance(ReCap.from_pretrained(tmp_path / "pack"), "mine") == marks
    name = f"onnx:{encoder_folder}"
    other_words = [Pair(pair.image, (*pair.captions[:2], "a wall"), pair.id) for pair in pairs]
    others = [
        captioner.configured(k=3),
        captioner.configured(seed=5),
        captioner.configured(method="procrustes"),
        ReCap.fit(pairs[:-1], encoder=name, method="ols"),
        ReCap.fit(other_words, encoder=name, method="ols"),
        ReCap.fit(pairs, encoder=f"onnx:{shared_encoder_folder}", method="ols"),
    ]
    hashes = [provenance(other, "mine")["settings"] for other in (captioner, *others)]
    hashes.append(provenance(captioner, "mine", min_confidence=0.5)["settings"])
    assert len(set(hashes)) == len(hashes)
