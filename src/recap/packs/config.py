"""``config.json`` of a pack: read once, into a frozen value that knows how to open what it names."""

from __future__ import annotations

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
from recap.packs.card import About
from recap.packs.settings import Settings

FORMAT = 1
CONFIG = "config.json"
DATASTORE = "datastore"

_REQUIRED = ("encoder", "image_fingerprint", "text_fingerprint", "language_model")


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
