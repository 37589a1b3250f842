"""Options and loading that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from recap.captioner import ReCap

Command = TypeVar("Command", bound=Callable[..., Any])

DEVICES = click.Choice(["cpu", "cuda", "mps"])


def pack_options(command: Command) -> Command:
    """Add the options that say which pack is loaded, and where it runs."""
    for option in (
        click.option("--device", type=DEVICES, default="cpu", show_default=True, help="Where encoder and model run."),
        click.option("--pack", default="builtin", show_default=True, help="A folder, a name on the hub, or builtin."),
    ):
        command = option(command)
    return command


def load_captioner(pack: str, device: str, language_model: str | None = None) -> ReCap:
    """Load a pack, with a bar when the built-in one is made on first use."""
    from recap.captioner import ReCap

    return ReCap.from_pretrained(pack, language_model=language_model, device=device, progress=True)


def inputs_to_paths(inputs: tuple[str, ...]) -> Iterator[Path]:
    """Yield the pictures that the arguments name; ``-`` reads paths from standard input, one a line."""
    from recap.datasets import find_images

    def named() -> Iterator[str]:
        for given in inputs:
            if given == "-":
                yield from (line.rstrip("\n") for line in click.get_text_stream("stdin") if line.strip())
            else:
                yield given

    return find_images(named())
