"""CHAIR (Rohrbach et al. 2018): the share of captions that name a thing which is not in the picture.

What is in the picture is what its references name, of COCO's 80 kinds of objects; the published metric also looks at
COCO's outlines of objects, which other pictures do not have. Less is better. With few references a picture the value
is too high, since people leave out much of what they see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from recap.errors import InputError
from recap.language.things import named, shown
from recap.metrics.statistics import MetricResult, mean_result


def chair(
    candidates: Sequence[str], references: Sequence[Sequence[str]], image_index: Sequence[int] | None = None
) -> MetricResult:
    """Return the share of candidates that name a thing none of the references of their image names.

    Candidate ``i`` belongs to image ``i``, or to ``image_index[i]`` when that is given.
    """
    images = range(len(candidates)) if image_index is None else image_index
    if not len(candidates) or len(images) != len(candidates) or max(images) >= len(references):
        raise InputError(f"{len(candidates)} candidates but references of {len(references)} images")
    pairs = zip(candidates, images, strict=True)
    return mean_result("CHAIR", np.array([bool(invented(text, references[image])) for text, image in pairs], float))


def invented(candidate: str, references: Iterable[str]) -> list[str]:
    """Return the kinds of things that a caption names and no reference does, each once."""
    there = frozenset[str]().union(*map(shown, references))
    return list(dict.fromkeys(kinds[0] for kinds in named(candidate) if there.isdisjoint(kinds)))
