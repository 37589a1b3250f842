"""An output file and the journal it is made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from recap.batch.formats import write_records
from recap.batch.journal import Journal, open_journal
from recap.errors import InputError


@contextmanager
def open_output(out: Path, kind: str, generated_by: Mapping[str, str], *, restart: bool = False) -> Iterator[Journal]:
    """Yield the journal of an output file; when the block ends without an error, the file is made from it.

    Args:
        out: the output. ``jsonl`` is itself the journal, any other format has it beside it, as ``OUT.journal``.
        kind: one of ``recap.batch.FORMATS``.
        generated_by: the marks of the captions, as ``provenance`` returns them.
        restart: whether to begin anew, whatever is there.
    """
    path = out if kind == "jsonl" else out.with_name(f"{out.name}.journal")
    if out.exists() and not path.exists() and not restart:
        raise InputError(
            f"{out} is there, but no {path.name} beside it to go on from: name another file with --out, "
            "or have it written over with --restart"
        )
    with open_journal(path, generated_by, restart=restart) as journal:
        yield journal
        journal.finish()
        if kind != "jsonl":
            write_records(out, kind, journal.records())
