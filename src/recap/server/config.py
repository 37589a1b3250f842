"""What the person who starts the service decides, and the limits that are fixed."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

from recap.errors import InputError

MEGABYTE, MEBIBYTE = 1_000_000, 1 << 20

KEYS_VARIABLE = "RECAP_API_KEYS"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""What a browser on the same machine calls a service that listens on loopback."""
MIN_KEY = 16
"""Fewest characters of a key."""
MAX_JSON = 256 * 1024
"""Bytes of a body that is no form: a hundred captions of a thousand characters, and room to spare."""
MAX_JSON_PARTS = 20_000
"""Commas and brackets of a json body: pictures are a few long texts, and many small values take much memory."""
MAX_FIELDS = 400
"""Fields of a form."""
MAX_FIELD_BYTES = 16 * 1024
"""Bytes of a field that is no picture."""
MAX_NAME = 100
"""Characters of a name in a message."""
MAX_ERRORS = 20
"""Invalid fields that a problem lists."""
PIXEL_BUDGET = 2
"""Pixels of a batch, in units of what one picture may have, so that decoding it does not fill the memory."""
MAX_DECODERS = 4
"""Processes that decode pictures."""
DECODER_MEMORY = 512 << 20
"""Bytes that a process which decodes may have, apart from those for pixels."""
PIXEL_MEMORY = 32
"""Bytes that decoding and converting a pixel may take."""
FETCH_SECONDS = 15.0
"""Time for fetching a picture by its address, redirects included."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Limits and permissions of the service."""

    pack: str = "builtin"
    """The name of the pack, as users see it."""
    max_body: int = 32 * MEBIBYTE
    """Bytes of a request."""
    max_held: int = 256 * MEBIBYTE
    """Bytes of all requests together that are held in memory."""
    max_pixels: int = 25_000_000
    """Pixels of a picture; see ``forms.decoding_cost``."""
    max_pictures: int = 16
    """Pictures of a request."""
    max_queue: int = 64
    """Pictures that may wait; when the queue is full, the answer is 503."""
    max_batch: int = 32
    """Batch size; 1 turns batching off."""
    timeout: float = 60.0
    """Seconds from the last byte of a request to its answer."""
    body_timeout: float = 30.0
    """Seconds for the whole body of a request to arrive."""
    allow_urls: bool = False
    """Whether pictures may be given by address."""
    editable: bool = False
    """Whether the datastore may be looked at and changed."""
    save_edits: Path | None = None
    """The folder of the pack, if changes of its datastore are to be kept."""
    search: Path | None = None
    """The folder whose pictures can be searched by a text and shown."""
    decode_apart: bool = True
    """Whether pictures are decoded in processes of their own, with a limit on their memory."""
    api_keys: tuple[str, ...] = ()
    """Any of these opens the service; none leaves it open."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may use the service, such as ``https://photos.example``; ``*`` for all."""
    hosts: tuple[str, ...] | None = LOOPBACK_NAMES
    """What the service may be called in a request's Host header; None allows every name.

    A page of the web can give its own name the address 127.0.0.1, and would then speak with the service as if it had
    come from it.
    """

    def __post_init__(self) -> None:
        counts = (self.max_body, self.max_held, self.max_pixels, self.max_pictures, self.max_queue, self.max_batch)
        if min(counts) < 1 or min(self.timeout, self.body_timeout) <= 0:
            raise InputError("the limits of the service must be greater than zero")
        if self.max_queue < self.max_pictures:
            raise InputError(
                f"a queue of {self.max_queue} pictures never has room for a request of {self.max_pictures}: "
                "make the queue longer, or allow fewer pictures a request"
            )
        if self.max_held < self.max_body:
            raise InputError(f"{self.max_held} bytes of memory cannot hold a request of {self.max_body}")


def configure(
    pack: str,
    host: str,
    *,
    names: tuple[str, ...] = (),
    key_file: Path | None = None,
    insecure: bool = False,
    allow_urls: bool = False,
    editable: bool = False,
    save_edits: bool = False,
    search: Path | None = None,
    cors: tuple[str, ...] = (),
    max_megabytes: int = 32,
    **limits: int | float,
) -> ServerConfig:
    """Return the configuration that the options of ``recap serve`` describe; unsafe ones are refused."""
    keys, local, folder = read_keys(key_file), is_loopback(host), Path(pack)
    if not (local or keys or insecure):
        raise InputError(
            f"on {host} anybody could use the service: give keys ({KEYS_VARIABLE} or --api-keys), or --insecure"
        )
    if save_edits and not (editable and folder.is_dir()):
        raise InputError("--save-edits goes with --editable and a pack that is a folder")
    return ServerConfig(
        pack=folder.name if folder.is_dir() else pack,
        api_keys=keys,
        hosts=(*LOOPBACK_NAMES, *map(str.lower, names)) if local or names else None,
        allow_urls=allow_urls,
        editable=editable,
        save_edits=folder if save_edits else None,
        search=search,
        cors=check_origins(cors, anybody=bool(keys)),
        max_body=max_megabytes * MEGABYTE,
        max_held=max(256, 2 * max_megabytes) * MEGABYTE,
        **limits,  # type: ignore[arg-type]
    )


def check_origins(origins: tuple[str, ...], *, anybody: bool) -> tuple[str, ...]:
    """Return origins as browsers send them; ``*`` only where a key is needed, since any page could use the service."""
    for origin in origins:
        if origin == "*" and not anybody:
            raise InputError("--cors '*' lets every page of the web use the service: give keys, or name the origins")
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise InputError(f"--cors {origin}: an origin is a scheme and a host, such as https://photos.example")
    return tuple(origin.lower() for origin in origins)


def read_keys(path: Path | None) -> tuple[str, ...]:
    """Return the keys of the environment and of a file; never of the command line, which all users of a machine see."""
    lines = os.environ.get(KEYS_VARIABLE, "").split(",")
    if path is not None:
        lines += path.read_text(encoding="utf-8").splitlines()
    keys = tuple(dict.fromkeys(key.strip() for key in lines if key.strip()))
    if path is not None and not keys:
        raise InputError(f"{path} holds no key")
    if any(len(key) < MIN_KEY for key in keys):
        raise InputError(f"a key must have at least {MIN_KEY} characters; openssl rand -hex 24 makes a good one")
    return keys


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
