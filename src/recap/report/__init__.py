"""One self-contained page about a batch: each picture with its caption, and what the caption rests on."""

from __future__ import annotations

from recap.report.page import HtmlReport

__all__ = ["HtmlReport"]
