from __future__ import annotations

from pathlib import Path

import pytest

from recap.captioner import ReCap
from recap.types import Pair


@pytest.fixture(scope="session")
def captioner(pairs: list[Pair], encoder_folder: Path) -> ReCap:
    return ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}", language_model=None, method="ols")
