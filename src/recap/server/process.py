"""The service as a process: its configuration from options, its socket, and its end."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from recap.captioner import ReCap
from recap.errors import InputError
from recap.server.app import create_app
from recap.server.config import LOOPBACK_NAMES, MEGABYTE, MIN_KEY, ServerConfig

KEYS_VARIABLE = "RECAP_API_KEYS"


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


def bind(host: str, port: int) -> socket.socket:
    """Return a socket with its address."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        listening.close()
        raise InputError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listening


def run(captioner: ReCap, config: ServerConfig, listening: socket.socket, *, tell: Callable[[str], None]) -> None:
    """Serve until a signal comes; exit with 1 if the worker died."""
    # the reader's own limit counts all pixels alike; the service's is stricter, except for JPEG
    os.environ["RECAP_MAX_PIXELS"] = str(2 * config.max_pixels)
    app = create_app(captioner, config)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # uvicorn raises the signal that ended it once more, which would make the end look like a failure
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=int(config.timeout + config.body_timeout) + 1,
    )
    listening.listen(settings.backlog)
    host, port = listening.getsockname()[:2]
    tell(f"serving {config.pack} on http://{f'[{host}]' if ':' in host else host}:{port}")
    server = _Server(settings)
    app.state.on_death = partial(setattr, server, "should_exit", True)
    server.run(sockets=[listening])
    metrics = app.state.service.metrics
    tell(f"stopped; {metrics.received} requests came, {metrics.answered} were answered")
    if app.state.service.batcher.died:
        sys.exit(1)


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.stopping = True  # type: ignore[union-attr]
        super().handle_exit(sig, frame)
