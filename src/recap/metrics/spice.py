"""SPICE, SoftSPICE and CHAIR: does a caption speak of the same things as the references?

SPICE compares scene graphs. The definition is that of Anderson et al. 2016: F1 of the tuples of objects, attributes and
relations, with the tuples of all references pooled, and matched by lemma or by WordNet synset. The graphs come from
spaCy instead of Stanford's parser, so the figures are near those of the Java program but not equal, and the name says
so. The original is run by :func:`recap.metrics.java.java_spice`.

SoftSPICE (Li et al. 2023) is SPICE with the match of two phrases replaced by the cosine of their vectors.

CHAIR (Rohrbach et al. 2018) is the share of captions that name a thing which is not in the picture. What is in it is
what its references name, of COCO's 80 kinds of objects; the published metric also looks at COCO's outlines of objects,
which other pictures do not have. Less is better. With few references a picture the value is too high, since people
leave out much of what they see.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from recap.encoders.base import TextEncoder
from recap.errors import InputError
from recap.language.words import named, shown
from recap.metrics.corpus import MetricResult, MetricWarning, check_references, image_numbers, known_mean, mean_result
from recap.metrics.ngrams import Floats
from recap.metrics.scenegraph import (
    NUMERALS,
    SceneGraph,
    SceneGraphParser,
    SceneTuple,
    Synonyms,
    default_parser,
    default_synonyms,
    word_set,
)
from recap.types import Vectors

COLOURS = word_set(
    "amber aqua beige black blond blonde blue bronze brown burgundy crimson cyan gold golden gray green grey indigo "
    "khaki lavender lilac magenta maroon mauve navy ochre olive orange peach pink purple red rose ruby scarlet silver "
    "tan teal turquoise violet white yellow"
)
SIZES = word_set(
    "big enormous gigantic giant huge immense large little long massive miniature mini narrow short small tall thick "
    "thin tiny wide"
)
COUNTS = frozenset((*NUMERALS.values(), "both", "couple", "dozen", "few", "hundred", "many", "several"))


def _attribute_in(words: frozenset[str]) -> Callable[[SceneTuple], bool]:
    return lambda scene_tuple: len(scene_tuple) == 2 and scene_tuple[1] in words


_CATEGORIES: dict[str, Callable[[SceneTuple], bool]] = {
    "all": lambda scene_tuple: True,
    "object": lambda scene_tuple: len(scene_tuple) == 1,
    "attribute": lambda scene_tuple: len(scene_tuple) == 2,
    "relation": lambda scene_tuple: len(scene_tuple) == 3,
    "colour": _attribute_in(COLOURS),
    "count": _attribute_in(COUNTS),
    "size": _attribute_in(SIZES),
}


@dataclass(frozen=True, slots=True)
class SpiceResult(MetricResult):
    """SPICE, with the same figure for each kind of tuple."""

    breakdown: Mapping[str, MetricResult]
    """``object``, ``attribute``, ``relation``, ``colour``, ``count`` and ``size``. A candidate is NaN, and left out of
    the mean, where neither it nor its references have such a tuple."""


def spice(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    image_index: Sequence[int] | None = None,
    *,
    parser: SceneGraphParser | None = None,
    synonyms: Synonyms | None = None,
    progress: bool = False,
) -> SpiceResult:
    """Return SPICE-py of each candidate against the references of its image, and the mean.

    Args:
        candidates: one caption for each image, or any number with ``image_index``.
        references: the captions that people wrote for each image.
        image_index: for each candidate the number of its image; candidate ``i`` belongs to image ``i`` without it.
        parser: makes the scene graphs; spaCy's small English model unless given.
        synonyms: which words match; WordNet as METEOR has it unless given.
        progress: whether to show a bar.
    """
    check_references(references)
    index = image_numbers(candidates, len(references), image_index).tolist()
    parser = parser or default_parser()
    everything = [*candidates, *(text for texts in references for text in texts)]
    graphs = iter(parser.parse(everything, progress=progress))
    candidate_graphs = [next(graphs) for _ in candidates]
    reference_graphs = [[next(graphs) for _ in texts] for texts in references]
    return score_graphs(candidate_graphs, reference_graphs, index, synonyms=synonyms or default_synonyms())


def score_graphs(
    candidates: Sequence[SceneGraph],
    references: Sequence[Sequence[SceneGraph]],
    image_index: Sequence[int],
    *,
    synonyms: Synonyms,
) -> SpiceResult:
    """Return SPICE-py from scene graphs; a candidate without a single tuple scores 0, and a warning counts those."""
    pools = [_Pool(synonyms, (entry for graph in graphs for entry in graph.tuples)) for graphs in references]
    empty = sum(not graph.tuples for graph in candidates)
    if empty:
        message = f"SPICE-py found no object in {empty} of {len(candidates)} candidates; they score 0"
        warnings.warn(message, MetricWarning, stacklevel=2)
    scores = np.array([_f_scores(graph, pools[image]) for graph, image in zip(candidates, image_index, strict=True)])
    return spice_result("SPICE-py", dict(zip(_CATEGORIES, scores.T, strict=True)))


def spice_result(name: str, scores: Mapping[str, Floats]) -> SpiceResult:
    """Make the result from the scores of all tuples (``all``, where NaN is 0) and of each kind."""
    total = mean_result(name, np.nan_to_num(scores["all"]))
    breakdown = {kind: known_mean(f"{name} {kind}", values) for kind, values in scores.items() if kind != "all"}
    return SpiceResult(name, total.value, total.per_image, total.standard_error, breakdown)


class _Pool:
    """The tuples of all references of an image, those that mean the same only once."""

    def __init__(self, synonyms: Synonyms, tuples: Iterable[SceneTuple]) -> None:
        self._synonyms = synonyms
        self._words: dict[str, None] = {}
        self.tuples: set[SceneTuple] = set()
        for entry in tuples:
            if not self.match(entry):
                self.tuples.add(entry)
                self._words.update(dict.fromkeys(entry))

    def match(self, wanted: SceneTuple) -> bool:
        """Tell whether the pool has a tuple whose words all match."""
        if wanted in self.tuples:
            return True
        options = [[word for word in self._words if self._synonyms.match(word, part)] for part in wanted]
        return any(option in self.tuples for option in product(*options))


def _f_scores(graph: SceneGraph, pool: _Pool) -> list[float]:
    """Return F1 for each category; NaN where there is nothing on either side."""
    matched = [(entry, pool.match(entry)) for entry in graph.tuples]
    scores = []
    for belongs in _CATEGORIES.values():
        mine = [hit for entry, hit in matched if belongs(entry)]
        total = len(mine) + sum(map(belongs, pool.tuples))
        scores.append(2 * sum(mine) / total if total else float("nan"))
    return scores


def soft_spice(
    candidates: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    encoder: TextEncoder,
    *,
    progress: bool = False,
) -> MetricResult:
    """Return SoftSPICE from the phrases of scene graphs; a candidate without any, or without references, scores 0.

    Args:
        candidates: the phrases of each candidate, such as ``["dog", "brown dog", "dog on grass"]``.
        references: the phrases of all references of each candidate, taken together.
        encoder: gives phrases their vectors; each distinct phrase is encoded once.
        progress: whether to show a bar.
    """
    if len(candidates) != len(references) or not len(candidates):
        raise InputError(f"SoftSPICE: phrases of {len(candidates)} candidates, references of {len(references)}")
    phrases = list(dict.fromkeys(phrase for side in (candidates, references) for group in side for phrase in group))
    place = {phrase: row for row, phrase in enumerate(phrases)}
    vectors = encoder.encode_texts(phrases, progress=progress) if phrases else np.zeros((0, 1), np.float32)
    values = [
        mean_best_cosine(vectors[[place[phrase] for phrase in mine]], vectors[[place[phrase] for phrase in theirs]])
        if mine and theirs
        else 0.0
        for mine, theirs in zip(candidates, references, strict=True)
    ]
    return mean_result("SoftSPICE", np.array(values))


def mean_best_cosine(candidate: Vectors, references: Vectors) -> float:
    """Return the mean over candidate rows of the largest dot product with a reference row."""
    return float((candidate @ references.T).max(axis=1).mean(dtype=np.float64))


def chair(
    candidates: Sequence[str], references: Sequence[Sequence[str]], image_index: Sequence[int] | None = None
) -> MetricResult:
    """Return the share of candidates that name a thing none of the references of their image names.

    Candidate ``i`` belongs to image ``i``, or to ``image_index[i]`` when that is given.
    """
    images = image_numbers(candidates, len(references), image_index)
    pairs = zip(candidates, images, strict=True)
    return mean_result("CHAIR", np.array([bool(invented(text, references[image])) for text, image in pairs], float))


def invented(candidate: str, references: Iterable[str]) -> list[str]:
    """Return the kinds of things that a caption names and no reference does, each once."""
    there = frozenset[str]().union(*map(shown, references))
    return list(dict.fromkeys(kinds[0] for kinds in named(candidate) if there.isdisjoint(kinds)))
