"""What a pack says about itself: ``config.json``, read once into a frozen value that opens what it names, and its card.

The card, ``README.md``, has the form that the Hugging Face hub shows. What recap writes stands between two marks, and
is written anew when the pack changes; the rest belongs to its author.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from recap import __version__
from recap.datastore import DatastoreView, MutableStore, open_store
from recap.datastore.view import DATABASES, is_address
from recap.encoders import Encoder, load_encoder
from recap.encoders.base import ImageEncoder, LoadOptions, TextEncoder
from recap.encoders.registry import load_image_side, load_text_side
from recap.errors import EncoderMismatchError, InputError, PackError, damaged
from recap.files import read_json, sealed, write_json
from recap.packs.settings import Settings

FORMAT = 1
CONFIG = "config.json"
DATASTORE = "datastore"

_REQUIRED = ("encoder", "image_fingerprint", "text_fingerprint", "language_model")


@dataclass(frozen=True, slots=True)
class About:
    """Who made a pack, from what, under which licence, and how well it did."""

    description: str = ""
    author: str = ""
    licence: str = ""
    """Of the captions: an SPDX name such as ``CC-BY-4.0``, or a sentence."""
    data: dict[str, int] = field(default_factory=dict)
    """Counts of what went in: pictures, captions, and what was left out."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What was measured on validation pictures."""
    tuned: tuple[str, ...] = ()
    """The settings that were chosen on those pictures."""

    def but(self, **changes: Any) -> Self:
        """Return the same with some changed; None changes nothing."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what ``as_dict`` described; what a newer version added is passed over."""
        known = {name.name: values[name.name] for name in fields(cls) if name.name in values}
        texts = [*(known.get(name, "") for name in ("description", "author", "licence")), *known.get("tuned", ())]
        counts = [known.get(name, {}) for name in ("data", "numbers")]
        numbers = [number for count in counts if isinstance(count, dict) for number in count.values()]
        kinds = ((texts, str), (counts, dict), (numbers, int | float))
        if not all(isinstance(value, kind) for values, kind in kinds for value in values):
            raise InputError("what the config says about the pack has a value of the wrong kind")
        return cls(**{**known, "tuned": tuple(known.get("tuned", ()))})


def new_generation() -> str:
    """Return what tells one state of a pack from another."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackConfig:
    """What ``config.json`` of a pack says."""

    folder: Path
    """Where the pack is; not written."""
    generation: str = field(default_factory=new_generation)
    """Tells this state of the pack from others; empty in packs of older versions."""
    recap_version: str = __version__
    encoder: str
    image_fingerprint: str
    text_fingerprint: str
    language_model: str
    settings: Settings
    about: About = field(default_factory=About)
    datastore: str = ""
    """The address of the database with the captions; empty where they are in the pack."""
    captions: int | None = None
    """Number of captions the built-in pack was asked to have."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Size and sha256 of the files that only change when the whole pack is written."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the config of the pack in a folder, and check all that can be checked without loading anything."""
        path = folder / CONFIG
        try:
            values = read_json(path)
        except FileNotFoundError as error:
            raise PackError(f"{folder} is not a pack: it has no {CONFIG}") from error
        except (OSError, ValueError) as error:
            raise PackError(f"{path} cannot be read: {error}") from error
        _check(values, path)
        known = {name.name: values[name.name] for name in fields(cls) if name.name in values}
        try:
            settings, about = Settings.from_dict(values["settings"]), About.from_dict(values.get("about", {}))
        except (InputError, AttributeError, TypeError, ValueError) as error:
            raise PackError(f"{path}: {error}") from error
        first = {"generation": "", "recap_version": ""}
        return cls(**{**first, **known, "folder": folder, "settings": settings, "about": about})

    def write(self) -> None:
        """Put this in the place of the pack's config, sealed."""
        # a pack may come from elsewhere, and a link in it lead anywhere
        write_json(self.folder / CONFIG, sealed(self.as_dict()), follow=False)

    def but(self, **changes: Any) -> Self:
        """Return the config of another state of the pack."""
        return replace(self, **{"generation": new_generation(), **changes})

    def as_dict(self) -> dict[str, Any]:
        """Return the config as plain values, ready for json."""
        values = {"format": FORMAT} | {name.name: getattr(self, name.name) for name in fields(self)}
        values |= {"settings": asdict(self.settings), "about": asdict(self.about)}
        left_out = {"folder"} | {name for name in ("datastore", "captions", "files") if values[name] in ("", None, {})}
        return {name: value for name, value in values.items() if name not in left_out}

    def is_current(self) -> bool:
        """Tell whether the pack is still in this state."""
        return type(self).read(self.folder).generation == self.generation

    def load_encoder(self, device: str = "cpu", cache: str | Path | None = None) -> Encoder:
        """Load the encoder, and check that it makes the same vectors as the pack's."""
        encoder = load_encoder(self.encoder, device=device, cache=cache)
        self._check_side("image", self.image_fingerprint, encoder.image)
        self._check_side("text", self.text_fingerprint, encoder.text)
        return encoder

    def load_image_side(self, device: str = "cpu") -> ImageEncoder:
        """Load only what encodes images."""
        image = load_image_side(self.encoder, LoadOptions(device))
        self._check_side("image", self.image_fingerprint, image)
        return image

    def load_text_side(self, device: str = "cpu") -> TextEncoder:
        """Load only what encodes texts."""
        text = load_text_side(self.encoder, LoadOptions(device))
        self._check_side("text", self.text_fingerprint, text)
        return text

    def _check_side(self, side: str, made_by: str, encoder: ImageEncoder | TextEncoder) -> None:
        if made_by != encoder.fingerprint:
            raise EncoderMismatchError(
                f"{self.folder}: this pack was made with another version of the {side} encoder {encoder.name}; "
                "fit it again, or install the version it was made with"
            )

    def open_datastore(self, *, verify: bool = False) -> MutableStore | DatastoreView:
        """Open the captions, wherever they are; ``verify`` compares the sha256 of their files."""
        place = self.datastore or self.folder / DATASTORE
        with damaged(place):
            return open_store(place, verify=verify)


def _check(values: Any, path: Path) -> None:
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else None
        raise PackError(f"{path}: format {found!r} is not known to recap {__version__}, which reads format {FORMAT}")
    missing = {*_REQUIRED, "settings"} - values.keys()
    if missing:
        raise PackError(f"{path}: {', '.join(sorted(missing))} missing")
    for name in (*_REQUIRED, "generation", "recap_version"):
        if not isinstance(values.get(name, ""), str):
            raise PackError(f"{path}: {name} must be a text, not {type(values[name]).__name__}")
    if values.get("datastore") and not is_address(values["datastore"]):
        known = " or ".join(DATABASES)
        raise PackError(f"{path}: captions are in the pack or at an address that begins with {known}, not elsewhere")
    if not isinstance(values.get("files", {}), dict):
        raise PackError(f"{path}: files must be a table, not {type(values['files']).__name__}")


BEGIN, END = "<!-- recap: written by the program, from here -->", "<!-- recap: to here -->"

HUB_LICENCES = re.compile(
    r"apache-2\.0|mit|bsd-[23]-clause|unlicense|mpl-2\.0|(a|l)?gpl-3\.0|odbl|odc-by|pddl|cdla-permissive-[12]\.0"
    r"|cc0-1\.0|cc-by-(2\.0|2\.5|3\.0|4\.0)|cc-by-sa-[34]\.0|cc-by-nc-[234]\.0|cc-by-nd-4\.0|cc-by-nc-nd-[34]\.0"
    r"|cc-by-nc-sa-[234]\.0"
)
"""Licences that the hub knows by name; any other is given in words."""

TITLES = {
    "pictures": "pictures measured",
    "cider_d": "CIDEr-D",
    "nearest_cider_d": "CIDEr-D of the nearest caption alone",
    "i2t_r1": "caption for a picture, recall at 1",
    "i2t_r5": "caption for a picture, recall at 5",
    "i2t_r10": "caption for a picture, recall at 10",
    "t2i_r1": "picture for a caption, recall at 1",
    "t2i_r5": "picture for a caption, recall at 5",
    "t2i_r10": "picture for a caption, recall at 10",
}
"""What the numbers of a pack are called."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a card says."""

    encoder: str
    method: str
    pairs: float
    sources: Mapping[str, int]
    language_model: str
    settings: Settings
    about: About


def new_card(facts: Facts) -> str:
    """Return the card of a new pack."""
    title = facts.about.description.partition("\n")[0].rstrip(".") or "A recap pack"
    return f"{front_matter(facts)}# {title}\n\n{body(facts)}"


def refreshed(card: str, facts: Facts) -> str:
    """Return a card with recap's part of it brought up to date, and everything else as its author left it."""
    part = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}\n?", re.DOTALL)
    if not part.search(card):
        return card
    return part.sub(lambda _: body(facts), card, count=1)


def front_matter(facts: Facts) -> str:
    """Return the lines by which the hub sorts and shows the pack."""
    from huggingface_hub import EvalResult, ModelCardData

    licence = facts.about.licence.strip()
    values: dict[str, Any] = {}
    if licence and HUB_LICENCES.fullmatch(licence.casefold()):
        values["license"] = licence.casefold()
    elif licence:
        values |= {"license": "other", "license_name": licence}
    cider = facts.about.numbers.get("cider_d")
    if cider is not None:
        result = EvalResult(
            task_type="image-to-text",
            dataset_type="validation",
            dataset_name="validation pictures of the pack",
            metric_type="cider-d",
            metric_value=round(cider, 2),
        )
        values |= {"model_name": "recap", "eval_results": [result]}
    data = ModelCardData(
        language=facts.settings.language,
        library_name="recap",
        pipeline_tag="image-to-text",
        tags=["image-captioning", "recap"],
        **values,
    )
    return f"---\n{data.to_yaml().strip()}\n---\n"


def body(facts: Facts) -> str:
    """Return the part of the card that recap writes."""
    captions = sum(facts.sources.values())
    named = ", ".join(f"{name or 'unnamed'} ({count:,})" for name, count in sorted(facts.sources.items()))
    about = facts.about
    rows = {
        "encoder": facts.encoder,
        "map": f"{facts.method}, fitted on {facts.pairs:,.0f} pairs",
        "sources of the captions": named,
        "language": facts.settings.language,
        "language model": facts.language_model,
        "selection": facts.settings.selection or "what suits the language model",
        "author": about.author or "not given",
        "licence of the captions": about.licence or "not given",
        **{name.replace("_", " "): f"{count:,}" for name, count in about.data.items()},
    }
    table = "\n".join(f"| {name} | {_cell(value)} |" for name, value in rows.items())
    return f"""{BEGIN}
Captions images by one linear map into caption space and {captions:,} captions to retrieve from.

| | |
|---|---|
{table}
{_measured(about)}
```python
from recap import ReCap

captioner = ReCap.from_pretrained("path/to/this/folder")
print(captioner.caption("photo.jpg").text)
```

The captions in `datastore/` are the words of whoever wrote them: share this pack only as their licence allows.
{END}
"""


def _measured(about: About) -> str:
    if not about.numbers:
        return ""
    rows = "\n".join(
        f"| {TITLES.get(name, name)} | {value:,.0f} |"
        if name == "pictures"
        else f"| {TITLES.get(name, name)} | {value:.1f} |"
        for name, value in about.numbers.items()
    )
    chosen = f"\nChosen on the same pictures: {', '.join(about.tuned)}." if about.tuned else ""
    return f"""
Measured on validation pictures, which are neither in the map nor in the datastore; points, and recall in per cent.
{chosen}

| | |
|---|---|
{rows}
"""


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").split())
