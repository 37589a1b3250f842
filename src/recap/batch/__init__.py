"""Many files: captioned in stages that overlap, kept in a journal, resumed where a run was killed."""

from __future__ import annotations

from recap.batch.failures import FailureList
from recap.batch.journal import Journal, open_journal
from recap.batch.output import open_output
from recap.batch.provenance import provenance
from recap.batch.run import Summary, caption_files

__all__ = ["FailureList", "Journal", "Summary", "caption_files", "open_journal", "open_output", "provenance"]
