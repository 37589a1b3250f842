"""Options and loading that several commands share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from recap.captioner import ReCap


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(text: str) -> str:
    """Return a text of strangers for a terminal: without the characters by which it could be commanded."""
    return _CONTROL.sub("\ufffd", text)


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


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide which caption comes out."""
    options = (
        click.option(
            "--lm",
            "language_model",
            help="Language model: writer, smollm2, llamacpp:GGUF, hf:NAME, ct2:FOLDER or none.",
        ),
        click.option(
            "-k", type=click.IntRange(1), help="How many retrieved captions are evidence, and read by the model."
        ),
        click.option("--temperature", type=click.FloatRange(0), help="Of the language model; 0 is greedy."),
        click.option("--samples", type=click.IntRange(1), help="How many candidates the language model writes."),
        click.option("--seed", type=int, help="Of the language model's sampling."),
        click.option(
            "--candidates", type=click.Choice(["lm", "retrieved", "both"]), help="Where candidates come from."
        ),
        click.option(
            "--selection",
            type=click.Choice(["likely", "consensus", "cosine"]),
            help="How one is chosen (default: what suits the model); cosine: the paper's.",
        ),
        click.option("--method", help="The map: procrustes, ols, ridge, ...  (default: the pack's)."),
    )
    return _with(options, command)


def confidence_option(default: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what adds the option that has doubtful captions withheld; ``default`` says what holds without it."""
    return click.option(
        "--min-confidence",
        type=click.FloatRange(0, 1),
        metavar="P",
        help="Withhold captions that are right with a probability below P" + (f" ({default})." if default else "."),
    )


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where captions go, and what becomes of what is there."""
    file = click.Path(dir_okay=False, path_type=Path)
    options = (
        click.option("--out", type=file, help="Write to this .jsonl, .csv, .parquet or .json (COCO results); resumes."),
        click.option(
            "--format",
            "kind",
            type=click.Choice(["jsonl", "csv", "parquet", "coco"]),
            help="Whatever the suffix of --out.",
        ),
        click.option("--restart", is_flag=True, help="Begin --out anew, whatever was done before."),
        click.option(
            "--errors", type=file, help="Where unreadable files are listed (default: errors.jsonl beside --out)."
        ),
        click.option("--sidecars", is_flag=True, help="Write a .txt file beside each picture."),
        click.option(
            "--existing",
            type=click.Choice(["keep", "append", "replace"]),
            help="What becomes of .txt files that are there (default: keep).",
        ),
        click.option("--prefix", help="Comes before each caption in the .txt files."),
        click.option("--suffix", help="Comes after each caption in the .txt files."),
        click.option("--metadata", is_flag=True, help="Write captions into the pictures (XMP, IPTC), too."),
        click.option("--keep-originals", is_flag=True, help="With --metadata: keep a copy of each file as it was."),
        click.option("--html", type=file, help="Write a page that shows captions and their reasons, too."),
        click.option(
            "--frames", type=click.IntRange(1), default=4, show_default=True, help="Of a video are looked at."
        ),
        click.option("--scenes", is_flag=True, help="Take the frames of a video from different scenes."),
        click.option("--workers", type=click.IntRange(1), help="Use so many cores (default: all, or OMP_NUM_THREADS)."),
    )
    return _with(options, command)


def _with(options: tuple[Callable[..., Any], ...], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def inputs_to_paths(inputs: tuple[str, ...], *, videos: bool = False) -> Iterator[Path]:
    """Yield the pictures that the arguments name; ``-`` reads paths from standard input, one a line."""
    from recap.datasets import find_images
    from recap.datasets.images import IMAGE_SUFFIXES
    from recap.encoders.video import VIDEO_SUFFIXES

    def named() -> Iterator[str]:
        for given in inputs:
            if given == "-":
                yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
            else:
                yield given

    return find_images(named(), IMAGE_SUFFIXES | VIDEO_SUFFIXES if videos else IMAGE_SUFFIXES)
