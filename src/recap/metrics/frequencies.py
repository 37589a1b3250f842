"""In how many images an n-gram occurs: what CIDEr weighs n-grams by, kept in a file if wanted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recap.errors import InputError
from recap.metrics.corpus import References
from recap.metrics.ngrams import MAX_N, Ints, NgramTable

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
