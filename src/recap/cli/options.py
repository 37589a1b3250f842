"""Options and loading that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from recap.captioner import ReCap


DEVICES = click.Choice(["cpu", "cuda", "mps"])


def pack_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which pack is loaded, and where it runs."""
    where = click.option(
        "--device", type=DEVICES, default="cpu", show_default=True, help="Where encoder and model run."
    )
    which = click.option(
        "--pack", default="builtin", show_default=True, help="A folder, a name on the hub, or builtin."
    )
    return which(where(command))


def load_captioner(pack: str, device: str, language_model: str | None = None) -> ReCap:
    """Load a pack, with a bar when the built-in one is made on first use."""
    from PIL import Image

    from recap.captioner import ReCap

    # recap has a limit of its own, which the user can raise; Pillow's would come first
    Image.MAX_IMAGE_PIXELS = None
    return ReCap.from_pretrained(pack, language_model=language_model, device=device, progress=True)


def inputs_to_paths(inputs: tuple[str, ...]) -> Iterator[Path]:
    """Yield the pictures that the arguments name; ``-`` reads paths from standard input, one a line."""
    from recap.datasets import find_images

    def named() -> Iterator[str]:
        for given in inputs:
            if given == "-":
                yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
            else:
                yield given

    return find_images(named())
