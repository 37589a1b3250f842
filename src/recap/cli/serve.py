"""``recap serve``: captions over HTTP."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recap.cli.options import load_captioner, pack_options

if TYPE_CHECKING:
    from types import FrameType

    from recap.server import ServerConfig

KEYS_VARIABLE = "RECAP_API_KEYS"
MEGABYTE = 1_000_000


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how much is taken."""
    some = click.IntRange(1)
    options = (
        click.option("--max-megabytes", type=some, default=32, show_default=True, help="Of a request."),
        click.option("--max-pixels", type=some, default=25_000_000, show_default=True, help="Of a picture."),
        click.option("--max-pictures", type=some, default=16, show_default=True, help="Of a request."),
        click.option("--max-queue", type=some, default=64, show_default=True, help="Pictures that may wait."),
        click.option(
            "--max-batch",
            type=some,
            default=32,
            show_default=True,
            help="Pictures worked on together; 1: batching off.",
        ),
        click.option(
            "--timeout", type=click.FloatRange(1), default=60, show_default=True, help="Seconds until an answer."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@pack_options
@click.option("--lm", "language_model", help="Another language model than the pack's; none for no language model.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option(
    "--host-name", "names", multiple=True, help="A name the service is called by; may be given several times."
)
@click.option(
    "--api-keys",
    "key_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"A file of keys, one a line; {KEYS_VARIABLE} holds some as well, joined by commas.",
)
@click.option("--insecure", is_flag=True, help="Listen on other addresses than loopback without a key.")
@click.option("--allow-urls", is_flag=True, help="Fetch pictures by address, never from a private network.")
@click.option("--editable", is_flag=True, help="Let users look at the datastore and change it, in memory.")
@click.option("--save-edits", is_flag=True, help="With --editable: change the pack's folder too.")
@limit_options
def serve(
    pack: str,
    device: str,
    language_model: str | None,
    host: str,
    port: int,
    names: tuple[str, ...],
    key_file: Path | None,
    insecure: bool,
    allow_urls: bool,
    editable: bool,
    save_edits: bool,
    **limits: Any,
) -> None:
    """Serve captions, retrieval and scores over HTTP.

    Listens on this machine only unless --host says otherwise, which needs a key. SIGTERM and Ctrl-C end it when
    everything that was accepted has been answered.
    """
    keys = read_keys(key_file)
    local = is_loopback(host)
    if not (local or keys or insecure):
        raise click.UsageError(
            f"on {host} anybody could use the service: give keys ({KEYS_VARIABLE} or --api-keys), or --insecure"
        )
    if save_edits and not (editable and Path(pack).is_dir()):
        raise click.UsageError("--save-edits goes with --editable and a pack that is a folder")
    from recap.errors import MissingExtraError

    try:
        from recap.server import ServerConfig
        from recap.server.config import LOOPBACK_NAMES
    except ModuleNotFoundError as error:
        raise MissingExtraError("recap serve", "serve") from error
    megabytes = limits.pop("max_megabytes")
    config = ServerConfig(
        pack=Path(pack).name if Path(pack).is_dir() else pack,
        api_keys=keys,
        hosts=(*LOOPBACK_NAMES, *map(str.lower, names)) if local or names else None,
        allow_urls=allow_urls,
        editable=editable,
        save_edits=Path(pack) if save_edits else None,
        max_body=megabytes * MEGABYTE,
        max_held=max(256, 2 * megabytes) * MEGABYTE,
        **limits,
    )
    # the reader's own limit counts all pixels alike; the service's is stricter, except for JPEG
    os.environ["RECAP_MAX_PIXELS"] = str(2 * config.max_pixels)
    listening = bind(host, port)
    run(pack, device, language_model, config, listening)


def run(pack: str, device: str, language_model: str | None, config: ServerConfig, listening: socket.socket) -> None:
    """Load the pack and serve it until a signal comes."""
    import logging
    import signal

    import uvicorn

    from recap.server import create_app

    app = create_app(load_captioner(pack, device, language_model), config)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)
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
    click.echo(f"recap: serving {config.pack} on {address_of(listening)}", err=True)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.stopping = True
            super().handle_exit(sig, frame)

    server = Server(settings)
    app.state.on_death = partial(setattr, server, "should_exit", True)
    server.run(sockets=[listening])
    metrics = app.state.service.metrics
    click.echo(f"recap: stopped; {metrics.received} requests came, {metrics.answered} were answered", err=True)
    if app.state.service.batcher.died:
        sys.exit(1)


def read_keys(path: Path | None) -> tuple[str, ...]:
    """Return the keys of the environment and of a file; never of the command line, which all users of a machine see."""
    found = os.environ.get(KEYS_VARIABLE, "").split(",")
    if path is not None:
        found += path.read_text(encoding="utf-8").splitlines()
    keys = tuple(dict.fromkeys(key.strip() for key in found if key.strip()))
    if path is not None and not keys:
        raise click.UsageError(f"{path} holds no key")
    if any(len(key) < 16 for key in keys):
        raise click.UsageError("a key must have at least 16 characters; openssl rand -hex 24 makes a good one")
    return keys


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """Return a socket with its address; taken before the pack is loaded, so that one in use is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        listening.close()
        raise click.UsageError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listening


def address_of(listening: socket.socket) -> str:
    """Return where a browser finds the service."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
