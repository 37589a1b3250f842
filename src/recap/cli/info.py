"""``recap info``: what is here."""

from __future__ import annotations

import platform
import sys
from typing import Any

import click

from recap.cli.options import format_option, print_json, print_rows, warn
from recap.errors import install_command

PARTS = ("numpy", "onnxruntime", "faiss-cpu", "xllamacpp", "torch", "open_clip_torch", "transformers", "ctranslate2")

DAMAGED = "damaged"


@click.command()
@format_option("How it is printed; csv, markdown and latex have one table after the other.")
@click.option("--verify", is_flag=True, help="Hash the assets on disk; exit code 1 if one is damaged.")
@click.pass_context
def info(context: click.Context, kind: str, verify: bool) -> None:
    """Show versions, models, packs and assets on disk."""
    facts = _collect(verify)
    if kind == "json":
        print_json(facts)
    elif kind != "table":
        for rows in facts.values():
            if isinstance(rows, list):
                print_rows(rows, kind)
    else:
        _print(facts)
    context.exit(int(any(asset["on disk"] == DAMAGED for asset in facts["assets"])))


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)
    console.print(f"recap {facts['recap']}, Python {facts['python']}, cache {facts['cache']}")
    for title, rows in facts.items():
        if isinstance(rows, list) and rows:
            table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
            for column in rows[0]:
                table.add_column(column, style="dim" if column == "licence" else "", no_wrap=column == "name")
            for row in rows:
                table.add_row(*(str(value) for value in row.values()))
            console.print()
            console.print(table)


def _collect(verify: bool) -> dict[str, Any]:
    from recap import __version__
    from recap.assets import ASSETS, cache_dir
    from recap.encoders import list_encoders
    from recap.language import list_language_models
    from recap.metrics.registry import METRICS

    packs = sorted(path.parent for path in (cache_dir() / "packs").glob("*/config.json"))
    return {
        "recap": __version__,
        "python": platform.python_version(),
        "cache": str(cache_dir()),
        "libraries": [{"name": name, "version": _version(name)} for name in PARTS],
        "encoders": [
            {
                "name": item.name,
                "what": item.help,
                "image": item.dimensions[0] or "",
                "text": item.dimensions[1] or "",
                "licence": item.licence,
                "available": _available(item.missing_extra),
            }
            for item in list_encoders()
        ],
        "language models": [
            {"name": m.name, "what": m.help, "licence": m.licence, "available": _available(m.missing_extra)}
            for m in list_language_models()
        ],
        "metrics": [{"name": m.name, "what": m.help, "available": _available(m.missing_extra)} for m in METRICS],
        "packs": [{"name": path.name.rpartition("-")[0], "folder": str(path)} for path in packs],
        "assets": [
            {
                "name": name,
                "MB": round(asset.size / 1e6, 1),
                "licence": asset.licence,
                "on disk": _on_disk(name, verify),
            }
            for name, asset in ASSETS.items()
        ],
    }


def _on_disk(name: str, verify: bool) -> str:
    from recap import assets
    from recap.errors import ChecksumError

    try:
        there = assets.verify(name) if verify else assets.is_cached(name)
    except ChecksumError as error:
        warn(error)
        return DAMAGED
    return "yes" if there else "no"


def _available(missing_extra: str | None) -> str:
    return "yes" if missing_extra is None else install_command(missing_extra)


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
