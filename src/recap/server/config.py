"""What the person who starts the service decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recap.errors import InputError

MEGABYTE, MEBIBYTE = 1_000_000, 1 << 20
MIN_KEY = 16
"""Fewest characters of a key."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""What a browser on the same machine calls a service that listens on loopback."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Limits and permissions of the service."""

    pack: str = "builtin"
    """The name of the pack, for the eyes of users."""
    max_body: int = 32 * MEBIBYTE
    """So many bytes a request may have."""
    max_held: int = 256 * MEBIBYTE
    """So many bytes of all requests together are held in memory."""
    max_pixels: int = 25_000_000
    """So many pixels a picture may have; see ``forms.decoding_cost``."""
    max_pictures: int = 16
    """So many pictures a request may have."""
    max_queue: int = 64
    """So many pictures may wait; whoever comes then is asked to come again."""
    max_batch: int = 32
    """So many pictures are worked on together; 1 turns batching off."""
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
    decode_apart: bool = True
    """Whether pictures are decoded in processes of their own, with a limit on their memory."""
    api_keys: tuple[str, ...] = ()
    """Any of these opens the service; none leaves it open."""
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
