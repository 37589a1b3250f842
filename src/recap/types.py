"""The small frozen values that travel between the rooms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from recap.files import html_table

if TYPE_CHECKING:
    from PIL.Image import Image

Vectors: TypeAlias = npt.NDArray[np.float32]
"""Rows of float32; unit length unless said otherwise."""


class ArrayLike(Protocol):
    """What numpy takes for an array: its own, and the tensors of torch and others."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        ...

    def __array__(self) -> npt.NDArray[Any]: ...


ImageLike: TypeAlias = "str | Path | bytes | bytearray | memoryview | BinaryIO | Image | npt.NDArray[Any] | ArrayLike"
"""A path, an address, a file's content, an open file, a decoded picture, or its pixels: ``recap.encoders.inputs``."""

Origin = Literal["lm", "retrieved"]

VOTE_TEMPERATURE = 0.1
"""A caption this much less similar to the image than the nearest one has 1/e of its vote."""

UNSURE_BELOW = 0.5
"""A caption whose confidence is less is more likely wrong than right: it is marked, and kept out of alt texts."""


SHOWN = 5
"""Retrieved captions of a caption that a notebook shows."""


def unit_rows(
    rows: npt.NDArray[Any],
    lengths: npt.NDArray[Any] | None = None,
    *,
    shortest: float = 0.0,
    otherwise: float = np.nan,
) -> npt.NDArray[Any]:
    """Return a copy of rows in which each has length one, whatever the other rows are.

    A row without a direction (NaN, infinite, not longer than ``shortest``) is filled with ``otherwise``. The copy is
    float64 where the rows are, and float32 otherwise. ``lengths`` are those of the rows where they are known.
    """
    # in C order, since sums over rows that lie otherwise are rounded otherwise
    unit = np.array(rows, dtype=np.result_type(np.float32, rows.dtype), order="C")
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(unit, axis=1) if lengths is None else lengths.astype(unit.dtype)
        # a square can leave the range of float32 although the row is fine
        doubtful = ~((lengths > 1e-15) & (lengths < 1e15))
        if doubtful.any():
            lengths[doubtful] = np.linalg.norm(unit[doubtful].astype(np.float64), axis=1)
        unit /= lengths[:, None]
    unit[~((lengths > shortest) & np.isfinite(lengths))] = otherwise
    return unit


@dataclass(frozen=True, slots=True)
class Pair:
    """One picture and the captions people wrote for it."""

    image: ImageLike
    captions: tuple[str, ...]
    id: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A caption of the datastore that was retrieved for an image.

    ``similarity`` is its aligned cosine with the image; ``synthetic`` says whether a machine wrote it.
    """

    text: str
    similarity: float
    source: str = ""
    synthetic: bool = False
    image_id: str = ""

    def __str__(self) -> str:
        """Return the caption."""
        return self.text

    def _repr_html_(self) -> str:
        return Retrieved((self,))._repr_html_()


class Retrieved(tuple[Evidence, ...]):
    """Captions that were retrieved for an image, most similar first; a table in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = ((item.similarity, item.text, item.source) for item in self)
        return html_table(("similarity", "caption", "source"), rows)


@dataclass(frozen=True, slots=True)
class Found:
    """A picture that a text was found to describe; ``similarity`` is the aligned cosine of both."""

    path: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Tag:
    """A keyword of a picture; ``score`` is from 0 to 1, and the higher the more speaks for it."""

    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sentence that might become the caption.

    ``score`` is the value of the selection rule, and the candidate with the highest becomes the caption; ``cosine`` is
    the aligned cosine with the image; ``origin`` is ``lm`` (with its log-probability) or ``retrieved``.
    """

    text: str
    score: float
    cosine: float
    origin: Origin
    logprob: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Caption:
    """What recap says about an image, with its reasons.

    ``score`` is the aligned cosine of caption and image, comparable between images of one pack; ``selection`` names the
    rule that chose among the ``candidates``, which are listed best first; ``evidence`` lists the retrieved captions,
    most similar first. ``confidence`` is the probability that people would call the caption right, where the pack has
    been calibrated.
    """

    text: str
    score: float
    evidence: tuple[Evidence, ...]
    candidates: tuple[Candidate, ...]
    selection: str
    confidence: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "evidence", Retrieved(self.evidence))  # a table in notebooks

    def __str__(self) -> str:
        """Return the sentence."""
        return self.text

    def __repr__(self) -> str:
        sure = "" if self.confidence is None else f", confidence={self.confidence:.2f}"
        kept = f"{len(self.evidence)} evidence, {len(self.candidates)} candidates"
        return f"Caption({self.text!r}, score={self.score:.2f}{sure}, {kept})"

    def _repr_html_(self) -> str:
        sure = "" if self.confidence is None else f"{self.confidence:.0%} sure{', unsure' * self.unsure}, "
        facts = f"<small>{sure}aligned cosine {self.score:.2f}; it rests on:</small>"
        return f"<p><b>{escape(self.text)}</b><br>{facts}</p>{Retrieved(self.evidence[:SHOWN])._repr_html_()}"

    @property
    def unsure(self) -> bool:
        """Whether the caption is probably wrong; one without a confidence is not called so."""
        return self.confidence is not None and self.confidence < UNSURE_BELOW

    def as_dict(self) -> dict[str, Any]:
        """Return the caption as plain values, ready for json."""
        values = asdict(self)
        first = {"caption": values.pop("text")}
        first |= {"score": values.pop("score"), "confidence": values.pop("confidence"), "unsure": self.unsure}
        return {**first, "selection": values.pop("selection"), **values}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a language model is given for one image."""

    text: str
    """The rendered prompt, for models that read text."""
    captions: Sequence[str]
    """The retrieved captions in prompt order, for models that read captions."""
    vector: Vectors | None = None
    """The image as a point in caption space, for models that read vectors."""
    space: str = ""
    """The fingerprint of the text encoder whose caption space that is."""
    details: Vectors | None = None
    """What the image encoder says of the image beside its vector, for models that look at it themselves."""
    sight: str = ""
    """The fingerprint of what these details mean."""
    pool: Sequence[str] = ()
    """All captions that were retrieved, nearest first, for models that can weigh many."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One sentence a language model wrote."""

    text: str
    logprob: float
    """The sum of the log-probabilities of its tokens under the model, before temperature and cuts."""


_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
_LARGEST = 2**53


def check_kinds(value: Any) -> None:
    """Raise ``TypeError`` unless the numbers and texts of a dataclass are such; json has no opinion about that."""
    for known in fields(value):
        wanted = _KINDS.get(str(known.type))
        found: Any = getattr(value, known.name)
        if wanted is None:
            continue
        if not isinstance(found, wanted) or (isinstance(found, bool) and known.type != "bool"):
            raise TypeError(f"{known.name} must be {known.type}, not {type(found).__name__}")
        if known.type in ("int", "float") and not _is_within_bounds(found):
            raise TypeError(f"{known.name} is out of all bounds")


def _is_within_bounds(number: Any) -> bool:
    return bool(-_LARGEST <= number <= _LARGEST)
