"""Options, arguments and messages that several commands share."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from recap.errors import UnknownNameError, check_name

if TYPE_CHECKING:
    from recap.captioner import ReCap

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)
ANY_PATH = click.Path(path_type=Path)
COUNT = click.IntRange(1)

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal, or turn around what follows; of white space only those that end a line."""
_ADDRESS = re.compile(r"|auto|local|(ray://)?[^/\s]+:\d+")


class OwnPack(click.Path):
    """The folder of a pack that can be changed."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the folder; for the built-in pack, say how to get a copy of one's own."""
        from recap.packs.folder import BUILTINS

        if value in BUILTINS and not Path(value).is_dir():
            copy = f"from recap import ReCap; ReCap.from_pretrained('{value}').save_pretrained('mine')"
            self.fail(f'the built-in pack stays as it is; make a copy of your own: python -c "{copy}"', param, ctx)
        return super().convert(value, param, ctx)


class NameChoice(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2 only
    """One of the names of a registry, which is imported when they are needed, or one of ``others``."""

    def __init__(self, registry: str, *others: str) -> None:
        self._registry, self._others = registry, others
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names."""
        return (*resolve_name(self._registry).names(), *self._others)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a name that is known; of any other say what may have been meant."""
        try:
            check_name(resolve_name(self._registry).what, value, self.choices)
        except UnknownNameError as error:
            self.fail(str(error), param, ctx)
        return value


def printable(text: str) -> str:
    """Return a text as one column of one line: without characters that control the terminal, tabs and line ends."""
    return re.sub(r"[\t\n]", " ", _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))


def print_json(value: Any, indent: int | None = None) -> None:
    """Print a value as json, in which characters that control the terminal are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    click.echo(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def warn(message: object) -> None:
    """Print a line on standard error."""
    click.echo(f"recap: {printable(str(message))}", err=True)


def emit(value: Any, text: str, *, as_json: bool, indent: int | None = None) -> None:
    """Print a value as json, or as text for a reader."""
    if as_json:
        print_json(value, indent)
    else:
        click.echo(text)


def combine(*options: Decorator) -> Decorator:
    """Return a decorator that adds several options, in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _check_with(function: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return a callback that lets a function refuse a value; it is imported when there is one."""

    def check(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
        if value is not None:
            resolve_name(function)(value)
        return value

    return check


def _check_folder(context: click.Context, option: click.Parameter, place: str | None) -> str | None:
    if place is not None and "://" not in place and not Path(place).is_dir():
        raise click.BadParameter(f"{place!r} is neither a folder nor a URL")
    return place


def _check_address(context: click.Context, option: click.Parameter, address: str | None) -> str | None:
    if address is not None and not _ADDRESS.fullmatch(address):
        raise click.BadParameter(
            f"{address!r} is not the address of a cluster; where none is meant, write --ray last, or --ray=auto"
        )
    return address


def _compile_pattern(context: click.Context, option: click.Parameter, pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise click.UsageError(f"--match {pattern!r} is no regular expression: {error}") from error


def method_option(help: str, *names: str, **more: Any) -> Decorator:
    """Return ``--method`` or an option of other names; an unknown map is refused before anything is loaded."""
    return click.option(
        *(names or ("--method",)), callback=_check_with("recap.alignment.mapping:check_method"), help=help, **more
    )


def lm_option(help: str) -> Decorator:
    """Return ``--lm``; an unknown language model is refused before anything is loaded."""
    return click.option(
        "--lm", "language_model", callback=_check_with("recap.language.registry:LANGUAGE_MODELS.get"), help=help
    )


def device_option(help: str) -> Decorator:
    """Return ``--device``; ``help`` says what runs there."""
    return click.option(
        "--device", type=click.Choice(["cpu", "cuda", "mps"]), default="cpu", show_default=True, help=help
    )


def format_option(help: str = "How it is printed.", *others: str, short: tuple[str, ...] = ("json",)) -> Decorator:
    """Return ``--format`` for commands that print a table, and flags such as ``--json`` for short.

    The command gets one ``kind``. ``others`` are more formats than the usual ones, ``short`` are those with a flag.
    """
    choice = click.Choice(["table", "json", "csv", "markdown", "latex", *others])
    flags = [click.option(f"--{n}", f"as_{n}", is_flag=True, help=f"The same as --format {n}.") for n in short]
    options = combine(
        click.option("--format", "kind", type=choice, default="table", show_default=True, help=help), *flags
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(*arguments: Any, kind: str, **given: Any) -> Any:
            named = {name for name in short if given.pop(f"as_{name}")} | {kind} - {"table"}
            if len(named) > 1:
                raise click.UsageError(f"choose one format: {', '.join(sorted(named))}")
            return command(*arguments, kind=next(iter(named), "table"), **given)

        return options(run)

    return decorate


def print_rows(rows: Sequence[Mapping[str, Any]], kind: str) -> None:
    """Print rows of the same columns as csv, in which a spreadsheet takes no text for a formula, markdown or LaTeX."""
    from recap.batch.formats import csv_lines
    from recap.files import latex_text, markdown_text

    columns = list(rows[0]) if rows else []
    if kind == "csv":
        text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", "".join(csv_lines(rows, columns)))
    else:
        cells = [[printable(str(row[name])) for name in columns] for row in rows]
        text = {"markdown": markdown_text, "latex": latex_text}[kind](columns, cells)
    click.echo(text, nl=False)


def json_option(help: str = "Print one json object.") -> Decorator:
    """Return ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=help)


encoder_option = click.option(
    "--encoder",
    default="builtin",
    show_default=True,
    help="Name of the encoder, such as builtin or ViT-B/32; see recap info.",
)

images_option = click.option(
    "--images",
    callback=_check_folder,
    help="Folder or URL of the pictures that the input file names (default: the folder of that file).",
)

ray_option = click.option(
    "--ray",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value="",
    callback=_check_address,
    help="Let a Ray cluster do the work: auto, HOST:PORT or ray://HOST:PORT; without an address the one that "
    "RAY_ADDRESS names, or else one on this machine.",
)

pack_options = combine(
    click.option(
        "--pack",
        default="builtin",
        show_default=True,
        help="Pack to use: builtin, the folder of one of your own, or OWNER/NAME on the Hugging Face hub.",
    ),
    device_option("Processor for encoder and language model: cpu, cuda (NVIDIA) or mps (Apple)."),
)

split_option = click.option(
    "--split",
    "splits",
    multiple=True,
    help="Split of a Karpathy json file to read; may be given several times.  [default: train and restval]",
)

settings_options = combine(
    lm_option("Language model to write with: writer, smollm2, hf:NAME, none ...; recap info lists them."),
    click.option(
        "-k", type=COUNT, help="How many retrieved captions the language model reads, and are shown as evidence."
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(0),
        help="Temperature of the language model's sampling; 0 always takes the likeliest word.",
    ),
    click.option("--samples", type=COUNT, help="How many candidates the language model writes."),
    click.option("--seed", type=int, help="Seed of the language model's sampling."),
    click.option(
        "--candidates",
        type=click.Choice(["lm", "retrieved", "both"]),
        help="Who proposes captions: the language model (lm), the retrieved captions, or both.",
    ),
    click.option(
        "--selection",
        type=NameChoice("recap.selection:RULES"),
        help="Rule that chooses the caption among the candidates: by agreement of the retrieved captions (consensus), "
        "similarity with the picture (cosine, the paper's), or both with the writer's probability (likely).  "
        "[default: what suits the language model]",
    ),
    method_option("Map from pictures to captions: procrustes, ols, ridge, whitened ... (default: the pack's)."),
)
"""Options that decide which caption comes out."""

keep_suffix_option = click.option(
    "--sidecars-keep-suffix", "keep_suffix", is_flag=True, help="Name these files photo.jpg.txt, not photo.txt."
)

output_options = combine(
    click.option(
        "--out",
        type=OUTPUT,
        help="File to write captions to, .jsonl, .csv, .parquet or .json (COCO results); the same command resumes.",
    ),
    click.option(
        "--format",
        "kind",
        type=NameChoice("recap.batch:FORMATS"),
        help="Format of the --out file, whatever its suffix.",
    ),
    click.option("--restart", is_flag=True, help="Begin the --out file anew instead of resuming."),
    click.option(
        "--errors", type=OUTPUT, help="File that lists what could not be read (default: errors.jsonl beside --out)."
    ),
    click.option("--sidecars", is_flag=True, help="Write each caption into a .txt file beside its picture."),
    click.option(
        "--existing",
        type=click.Choice(["keep", "append", "replace"]),
        help="What --sidecars does with .txt files that exist (default: keep).",
    ),
    keep_suffix_option,
    click.option("--prefix", help="Text before each caption in the .txt files of --sidecars."),
    click.option("--suffix", help="Text after each caption in the .txt files of --sidecars."),
    click.option(
        "--xmp", is_flag=True, help="Write each caption into an .xmp file beside its picture (photo managers)."
    ),
    click.option("--metadata", is_flag=True, help="Also write captions into the metadata of the pictures (XMP, IPTC)."),
    click.option("--keep-originals", is_flag=True, help="With --metadata: keep a copy of each file as it was."),
    click.option(
        "--html", type=OUTPUT, help="Also write a web page (report) of the captions with the reasons for each."
    ),
    click.option(
        "--frames", type=COUNT, default=4, show_default=True, help="How many frames of a video are looked at."
    ),
    click.option("--scenes", is_flag=True, help="Take the frames of a video from different scenes."),
    click.option("--workers", type=COUNT, help="How many cores to use (default: all, or OMP_NUM_THREADS)."),
)
"""Options that say where captions go."""


own_pack = click.argument("pack", type=OwnPack())

caption_filters = combine(
    click.option(
        "--id", "ids", type=int, multiple=True, help="Only captions with this id; may be given several times."
    ),
    click.option("--source", multiple=True, help="Only captions of this source; may be given several times."),
    click.option(
        "--image", multiple=True, help="Only captions of this picture, by its id; may be given several times."
    ),
    click.option(
        "--match",
        metavar="REGEX",
        callback=_compile_pattern,
        help="Only captions in which this regular expression matches.",
    ),
    click.option(
        "--synthetic/--human", default=None, help="Only captions that a machine wrote, or only those of people."
    ),
)
compact_option = click.option(
    "--compact",
    is_flag=True,
    help="Write the whole datastore anew, so that nothing of removed captions stays on the disk.",
)


def confidence_option(default: str = "") -> Decorator:
    """Return ``--min-confidence``; ``default`` says what holds without it."""
    return click.option(
        "--min-confidence",
        type=click.FloatRange(0, 1),
        metavar="P",
        help="Withhold captions whose confidence, the probability of being right, is below P"
        + (f" ({default})." if default else "."),
    )


def load_captioner(pack: str, device: str, language_model: str | None = None) -> ReCap:
    """Load a pack, with a bar when the built-in one is made on first use."""
    from PIL import Image

    from recap.captioner import ReCap

    # recap has a limit of its own, which the user can raise; Pillow's would come first
    Image.MAX_IMAGE_PIXELS = None
    return ReCap.from_pretrained(pack, language_model=language_model, device=device, progress=True)


def find_pictures(inputs: Sequence[str], *, videos: bool = False) -> list[str]:
    """Return the pictures of this machine that arguments name.

    Some may turn out to be unreadable, but if there are none at all it is an error.
    """
    from recap.datasets import find_images
    from recap.datasets.images import IMAGE_SUFFIXES
    from recap.encoders.video import VIDEO_SUFFIXES

    report_raw(inputs)
    suffixes = IMAGE_SUFFIXES | VIDEO_SUFFIXES if videos else IMAGE_SUFFIXES
    paths = [str(path) for path in find_images(inputs, suffixes)]
    if paths and not any(map(os.path.lexists, paths)):
        raise click.UsageError(f"{paths[0]}: there is no such file" + (" (nor the others)" if len(paths) > 1 else ""))
    return paths


def report_raw(inputs: Iterable[str]) -> None:
    """Say how many raw files of cameras the folders among arguments hold: they are left out."""
    from recap.datasets.images import find_image_names
    from recap.encoders.images import RAW_ADVICE, RAW_SUFFIXES

    names = find_image_names(filter(os.path.isdir, inputs), frozenset(RAW_SUFFIXES))
    if count := sum(name.lower().endswith(RAW_SUFFIXES) for name in names):
        warn(f"{count:,} file{'s' * (count > 1)} left out: {RAW_ADVICE}")


def expand_inputs(inputs: Iterable[str]) -> Iterator[str]:
    """Yield what arguments name; for ``-`` the lines of standard input."""
    for name in inputs:
        if name == "-":
            yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
        else:
            yield name
