"""recap: image captions in your own domain without training, and metrics that agree with people."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recap.alignment import LinearAlignment as LinearAlignment
    from recap.alignment import PairStatistics as PairStatistics
    from recap.captioner import ReCap as ReCap
    from recap.datastore import Datastore as Datastore
    from recap.encoders import load_encoder as load_encoder
    from recap.errors import RecapError as RecapError
    from recap.types import Caption as Caption
    from recap.types import Pair as Pair

__version__ = "0.1.0"

_HOMES = {
    "Caption": "recap.types",
    "Datastore": "recap.datastore",
    "LinearAlignment": "recap.alignment",
    "Pair": "recap.types",
    "PairStatistics": "recap.alignment",
    "ReCap": "recap.captioner",
    "RecapError": "recap.errors",
    "load_encoder": "recap.encoders",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import recap`` stays instant."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'recap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
