"""The pictures a pack was fitted with: enough to know one again, and to withdraw it.

    pictures.parquet         id, source and sha256 of each picture, the ids of its captions, sha256 of those
    pictures.safetensors     their vectors in the same order; only when the pack was asked to keep them

No pixel is kept. A picture can be withdrawn exactly when its vector is here, or when the very same file is given again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recap.alignment.rows import read_tensors, write_tensors
from recap.datastore.base import Ids
from recap.datastore.manifest import check_table, check_texts
from recap.errors import InputError, PackError
from recap.files import atomic_write
from recap.types import Vectors

TABLE = "pictures.parquet"
VECTORS = "pictures.safetensors"
_KIND = "pictures"
_COLUMNS = {"id": "text", "source": "text", "sha256": "text", "caption_ids": "ints", "captions_sha256": "text"}
_TEXTS = [name for name, kind in _COLUMNS.items() if kind == "text"]
SHOWN = 5
"""Number of names in a message."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture that was fitted."""

    id: str
    source: str
    sha256: str
    """Of its content."""
    caption_ids: tuple[int, ...]
    """The ids that its captions got in the datastore."""
    captions_sha256: str


def captions_digest(captions: Iterable[str]) -> str:
    """Return a hash by which the captions of a picture are known again."""
    return hashlib.sha256("\n".join(captions).encode()).hexdigest()


class Pictures:
    """The pictures of a pack in the order in which they were fitted."""

    def __init__(self, pictures: Iterable[Picture] = (), vectors: Sequence[Vectors] | Vectors | None = None) -> None:
        self._given: list[Picture] | None = list(pictures)
        self._table: Any = None
        """An open file with the pictures, where nobody has looked at them yet: captioning never does."""
        self._vectors = None if vectors is None else list(vectors)

    def __len__(self) -> int:
        return int(self._table.metadata.num_rows) if self._given is None else len(self._given)

    def __iter__(self) -> Iterator[Picture]:
        return iter(self._pictures)

    @property
    def _pictures(self) -> list[Picture]:
        if self._given is None:
            with _readable(self._table):
                table = self._table.read(columns=list(_COLUMNS))
                check_texts(table, _TEXTS, Path(TABLE))
                rows = table.to_pylist()
                self._given = [Picture(**{**row, "caption_ids": tuple(row["caption_ids"])}) for row in rows]
            self._table.close()
        return self._given

    @property
    def vectors(self) -> Vectors | None:
        """The image encoder's rows, if they are kept."""
        if self._vectors is None:
            return None
        return np.stack(self._vectors) if self._vectors else np.zeros((0, 0), dtype=np.float32)

    def add(self, picture: Picture, vector: Vectors) -> None:
        """Append a picture; its vector is kept when vectors are."""
        self._pictures.append(picture)
        if self._vectors is not None:
            self._vectors.append(vector)

    def find(self, ids: Collection[str], source: str | None = None) -> list[int]:
        """Return the places of pictures by id; ``InputError`` for ids that are unknown, or known in several sources."""
        wanted = set(ids)
        places: dict[str, list[int]] = {}
        for place, picture in enumerate(self._pictures):
            if picture.id in wanted and source in (None, picture.source):
                places.setdefault(picture.id, []).append(place)
        if unknown := sorted(wanted - places.keys()):
            raise InputError(f"{len(unknown)} of {len(wanted)} pictures are not in the pack: {shorten(unknown)}")
        sources = {self._pictures[place].source for found in places.values() for place in found}
        doubtful = sorted(
            name for name, found in places.items() if len({self._pictures[place].source for place in found}) > 1
        )
        if doubtful:
            raise InputError(
                f"{shorten(doubtful)}: pictures of that name are in several sources ({', '.join(sorted(sources))}); "
                "say which source is meant"
            )
        return sorted(place for found in places.values() for place in found)

    def at(self, places: Sequence[int]) -> list[Picture]:
        """Return pictures by place."""
        return [self._pictures[place] for place in places]

    def without(self, places: Collection[int]) -> Pictures:
        """Return the others."""
        gone = set(places)
        kept = [place for place in range(len(self)) if place not in gone]
        return Pictures(self.at(kept), None if self._vectors is None else [self._vectors[place] for place in kept])

    def joined(self, other: Pictures, theirs: Ids, ours: Ids) -> Pictures:
        """Return these and those of ``other``, whose captions had the ascending ids ``theirs`` and now have ``ours``.

        Vectors stay when both keep them.
        """

        def renumbered(ids: tuple[int, ...]) -> tuple[int, ...]:
            first, end = (np.searchsorted(theirs, ids, side=side) for side in ("left", "right"))
            return tuple(ours[first[first < end]].tolist())

        moved = [Picture(p.id, p.source, p.sha256, renumbered(p.caption_ids), p.captions_sha256) for p in other]
        both = self._vectors is not None and other._vectors is not None
        return Pictures([*self._pictures, *moved], [*(self._vectors or ()), *(other._vectors or ())] if both else None)

    def save(self, folder: Path) -> None:
        """Write table and vectors into a folder."""
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table(
            {
                "id": pyarrow.array([p.id for p in self], pyarrow.large_string()),
                "source": pyarrow.array([p.source for p in self], pyarrow.large_string()),
                "sha256": pyarrow.array([p.sha256 for p in self], pyarrow.string()),
                "caption_ids": pyarrow.array([list(p.caption_ids) for p in self], pyarrow.list_(pyarrow.int64())),
                "captions_sha256": pyarrow.array([p.captions_sha256 for p in self], pyarrow.string()),
            }
        )
        with atomic_write(folder / TABLE) as file:
            pyarrow.parquet.write_table(table, file, compression="zstd")
        vectors = self.vectors
        if vectors is not None:
            write_tensors(folder / VECTORS, _KIND, {"images": vectors}, {})

    @classmethod
    def load(cls, folder: Path) -> Pictures | None:
        """Read what ``save`` wrote; None for a pack that knows nothing of its pictures."""
        import pyarrow
        import pyarrow.parquet

        path = folder / TABLE
        if not path.exists():
            return None
        if not path.is_file():
            raise PackError(f"{path} is not a file")
        with _readable(path):
            # the file stays open, so that another pack in its place does not show
            table = pyarrow.parquet.ParquetFile(pyarrow.OSFile(str(path), "r"), read_dictionary=_TEXTS)
            check_table(table, path, _COLUMNS)
        count, vectors = int(table.metadata.num_rows), None
        if count > path.stat().st_size:  # a hash a row does not get smaller by compression
            raise PackError(f"{path} holds {count} rows in {path.stat().st_size} bytes; it is not read")
        if (folder / VECTORS).exists():
            vectors = read_tensors(folder / VECTORS, _KIND, ["images"], [])[0]["images"]
            if len(vectors) != count:
                raise PackError(f"{folder / VECTORS} holds {len(vectors)} vectors for {count} pictures")
        loaded = cls(vectors=vectors)
        loaded._given, loaded._table = None, table
        return loaded


def shorten(names: Sequence[str]) -> str:
    """Return the first few of many names."""
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


@contextmanager
def _readable(what: object) -> Iterator[None]:
    """Say that a table cannot be read, whatever is wrong with it."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, TypeError, KeyError) as error:
        where = what if isinstance(what, Path) else TABLE
        raise PackError(f"{where} is not a readable table of pictures: {error}") from error
