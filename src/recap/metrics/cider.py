"""CIDEr and CIDEr-D (Vedantam et al. 2015): n-grams weighted by how few images share them.

What coco-caption prints as "CIDEr" is CIDEr-D: counts clipped to the reference, and a penalty on lengths that differ.
Plain CIDEr is the mean cosine of the weighted counts. Both are means over n = 1..4 and over references, times 10.

In how many images an n-gram occurs: what CIDEr weighs n-grams by, kept in a file if wanted.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from recap.errors import InputError
from recap.metrics.corpus import Corpus, ImageIndex, MetricResult, MetricWarning, References, mean_result
from recap.metrics.ngrams import MAX_N, Floats, Ints, NgramCounts, NgramTable, Small, ranges

_FORMAT = 1


@dataclass(frozen=True)
class DocumentFrequencies:
    """The number of images whose references hold an n-gram, for every n-gram of a corpus."""

    documents: int
    """The number of images."""
    vocabulary: dict[str, int]
    table: NgramTable
    counts: tuple[Ints, ...]
    """For n = 1, 2, ...: by id of the n-gram, the number of images."""

    @classmethod
    def of(cls, references: References | Sequence[Sequence[str]]) -> DocumentFrequencies:
        """Count in how many images each n-gram of the references occurs."""
        prepared = references if isinstance(references, References) else References.of(references)
        return cls(len(prepared), prepared.vocabulary, prepared.table, tuple(cls.counts_of(prepared)))

    @staticmethod
    def counts_of(references: References) -> list[Ints]:
        """Return the counts only, by the ids of the references' own table."""
        sizes = [references.table.size(n) for n in range(1, MAX_N + 1)]
        return [c.document_frequency(size) for c, size in zip(references.counts, sizes, strict=True)]

    def find(self, words: Iterable[str], pairs: Sequence[Ints], known: Sequence[Ints] = ()) -> list[Ints]:
        """Return for n = 1, 2, ... the ids here of n-grams of another table, given by its words and pairs.

        ``known`` are ids found before: words and pairs are then numbered after those. An n-gram that is not here has an
        id past the end of ``counts``.
        """
        before = known or [np.zeros(0, np.int64)] * MAX_N
        found = [np.array([self.vocabulary.get(word, self.table.words) for word in words], np.int64)]
        of_words = prefixes = np.concatenate([before[0], found[0]])
        for n, level in enumerate(pairs, 2):
            found.append(self.table.find(n, level, prefixes, of_words))
            prefixes = np.concatenate([before[n - 1], found[-1]])
        return found

    def of_ids(self, ids: Sequence[Ints]) -> list[Ints]:
        """Return for n = 1, 2, ... the number of images for each id, and 0 for those past the end."""
        return [np.append(counts, 0)[level] for counts, level in zip(self.counts, ids, strict=True)]

    def save(self, path: str | Path) -> None:
        """Write the table to a file (NumPy's compressed format, no pickle)."""
        arrays: dict[str, Any] = {f"pairs{n}": pairs for n, pairs in enumerate(self.table.pairs, 2)}
        arrays |= {f"counts{n}": counts.astype(np.int32) for n, counts in enumerate(self.counts, 1)}
        words = np.frombuffer("\n".join(self.vocabulary).encode(), np.uint8)
        header = np.array([_FORMAT, self.documents])
        target = Path(path)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez_compressed(file, header=header, words=words, **arrays)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | Path) -> DocumentFrequencies:
        """Read a table that ``save`` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                version, documents = file["header"].tolist()
                words = file["words"].tobytes().decode().split("\n")
                pairs = tuple(file[f"pairs{n}"] for n in range(2, MAX_N + 1))
                counts = tuple(file[f"counts{n}"].astype(np.int64) for n in range(1, MAX_N + 1))
        except (OSError, KeyError, ValueError) as error:
            raise InputError(f"{path} is not a file of document frequencies: {error}") from error
        if version != _FORMAT:
            raise InputError(f"{path} has format {version}, this version of recap reads {_FORMAT}")
        vocabulary = {word: index for index, word in enumerate(words)}
        return cls(documents, vocabulary, NgramTable(len(words), pairs), counts)


SIGMA = 6.0
"""Width of CIDEr-D's length penalty, in words."""


class CiderD:
    """CIDEr-D against references that are prepared once: ``score`` may be called again and again.

    ``references`` holds a list of strings for each image. How rare an n-gram is comes from these references, or from
    ``document_frequencies`` of a larger corpus: needed for few images, and for scores that do not depend on the others.
    """

    name = "CIDEr-D"

    def __init__(
        self,
        references: References | Sequence[Sequence[str]],
        document_frequencies: DocumentFrequencies | None = None,
    ) -> None:
        self.references = references if isinstance(references, References) else References.of(references)
        self._given = document_frequencies
        documents = self._given.documents if self._given else len(self.references)
        if documents == 1:
            message = f"{self.name} is 0 when document frequencies come from one image: give those of a larger corpus"
            warnings.warn(message, MetricWarning, stacklevel=2)
        self._log_documents = float(np.log(documents))
        if self._given is None:
            frequencies = DocumentFrequencies.counts_of(self.references)
        else:
            self._ids = self._given.find(self.references.vocabulary, self.references.table.pairs)
            frequencies = self._given.of_ids(self._ids)
        # by id of an n-gram of the references
        self._weights = [self._weigh(frequency) for frequency in frequencies]
        self._norms = [self._reference_norms(n) for n in range(MAX_N)]

    def score(self, candidates: Sequence[str], image_index: ImageIndex | None = None) -> MetricResult:
        """Score candidate ``i`` against the references of image ``i``, or of ``image_index[i]`` when that is given."""
        return self.score_corpus(Corpus.of(candidates, self.references, image_index))

    def score_corpus(self, corpus: Corpus) -> MetricResult:
        """Score candidates that are tokenised already, together with the references of this scorer."""
        if corpus.references is not self.references:
            raise InputError("the corpus was made with other references than this scorer")
        weights = self._candidate_weights(corpus)
        similarity = np.zeros(len(corpus.pairs.reference))
        for n in range(MAX_N):
            similarity += self._cosines(n, corpus, weights[n])
        similarity *= self._penalty(corpus)
        references = np.diff(self.references.first)[corpus.image]
        per_image = np.add.reduceat(similarity, corpus.pairs.starts) / references
        return mean_result(self.name, per_image * 10.0 / MAX_N)

    def _cosines(self, n: int, corpus: Corpus, weights: Floats) -> Floats:
        """Return the (clipped) cosine of every pair for n-grams of n + 1 words; there is a weight for each row."""
        counts, grouped, pairs = corpus.counts[n], self.references.counts[n], corpus.pairs
        found, group = corpus.found[n]
        starts, stops = grouped.starts[group], grouped.starts[group + 1]
        rows, repeats = ranges(starts, stops), stops - starts
        product = self._product(np.repeat(counts.count[found], repeats), grouped.rows.count[rows])
        dots = product * np.repeat(weights[found] ** 2, repeats)
        # the pair of candidate c and reference r has number starts[c] + r - first reference of the image of c
        base = pairs.starts - self.references.first[corpus.image]
        pair = np.repeat(base[counts.sentence[found]], repeats) + grouped.rows.sentence[rows]
        sums = np.bincount(pair, dots, len(pairs.reference))
        scale = _norms(counts, weights, len(corpus))[pairs.candidate] * self._norms[n][pairs.reference]
        return np.divide(sums, scale, out=np.zeros(len(scale)), where=scale != 0)

    def _product(self, candidate: Small, reference: Small) -> Small:
        return np.minimum(candidate, reference) * reference

    def _penalty(self, corpus: Corpus) -> Floats:
        """Return the Gaussian of the difference in length, which coco-caption counts in bigrams."""
        bigrams = np.maximum(corpus.words.lengths - 1, 0)[corpus.pairs.candidate]
        in_reference = np.maximum(self.references.words.lengths - 1, 0)[corpus.pairs.reference]
        return np.exp(-((bigrams - in_reference) ** 2) / (2 * SIGMA**2))

    def _candidate_weights(self, corpus: Corpus) -> list[Floats]:
        """Return for n = 1, 2, ... the weight of each row of the candidates' counts."""
        if self._given is not None:
            words = islice(corpus.vocabulary, len(self.references.vocabulary), None)
            ids = self._given.find(words, corpus.new_pairs, self._ids)
            new = [self._weigh(frequency) for frequency in self._given.of_ids(ids)]
        result = []
        for n, (rows, known) in enumerate(zip(corpus.counts, self._weights, strict=True)):
            weights = np.full(len(rows.gram), self._log_documents)
            is_known = rows.gram < len(known)
            weights[is_known] = known[rows.gram[is_known]]
            if self._given is not None:
                weights[~is_known] = new[n][rows.gram[~is_known] - len(known)]
            result.append(weights)
        return result

    def _reference_norms(self, n: int) -> Floats:
        rows = self.references.counts[n].rows
        return _norms(rows, self._weights[n][rows.gram], len(self.references.words))

    def _weigh(self, frequency: Ints) -> Floats:
        """Return ln N - ln df; an n-gram that is nowhere counts as being in one image."""
        return self._log_documents - np.log(np.maximum(1, frequency))


class Cider(CiderD):
    """Plain CIDEr: no clipping, no length penalty."""

    name = "CIDEr"

    def _product(self, candidate: Small, reference: Small) -> Small:
        return candidate * reference

    def _penalty(self, corpus: Corpus) -> Floats:
        return np.ones(len(corpus.pairs.reference))


def cider_d(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    document_frequencies: DocumentFrequencies | None = None,
) -> MetricResult:
    """Return CIDEr-D of one candidate for each image, as coco-caption computes it."""
    return CiderD(references, document_frequencies).score(candidates)


def cider(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    document_frequencies: DocumentFrequencies | None = None,
) -> MetricResult:
    """Return plain CIDEr of one candidate for each image."""
    return Cider(references, document_frequencies).score(candidates)


def _norms(counts: NgramCounts, weights: Floats, sentences: int) -> Floats:
    weighted = counts.count * weights
    weighted *= weighted
    return np.sqrt(np.bincount(counts.sentence, weighted, sentences))
