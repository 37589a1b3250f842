"""What wrote a caption, in a form that goes with it and that tells one setting from another."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from recap import __version__

if TYPE_CHECKING:
    from recap.captioner import ReCap


def provenance(captioner: ReCap, pack: str, *, min_confidence: float | None = None, **others: Any) -> dict[str, str]:
    """Return what wrote the captions, with a hash of everything that decides which ones come out.

    Args:
        captioner: the captioner with its settings.
        pack: the name it was loaded by.
        min_confidence: captions less sure than this are withheld.
        others: settings outside the captioner that belong into the hash, ready for json.
    """
    model = captioner.language_model
    named = {
        "recap": __version__,
        "pack": pack,
        "encoder": captioner.encoder.name,
        "language_model": model.name if model else "none",
    }
    if min_confidence is not None:
        named["min_confidence"] = str(float(min_confidence))
        others["min_confidence"] = float(min_confidence)
    return {**named, "settings": _settings_hash(captioner, others)}


def _settings_hash(captioner: ReCap, others: dict[str, Any]) -> str:
    alignment = captioner.alignment
    arrays = (alignment.W_, alignment.image_mean_, alignment.text_mean_)
    decisive = {
        "encoders": [captioner.encoder.image.fingerprint, captioner.encoder.text.fingerprint],
        "map": [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays],
        "datastore": [captioner.datastore.sources(), captioner.datastore.content_hash()],
        "language_model": captioner.language_model.name if captioner.language_model else "none",
        "calibration": captioner.calibration and captioner.calibration.as_dict(),
        "settings": captioner.settings.as_dict(),
        "others": others,
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
