"""``recap serve``: captions over HTTP."""

from __future__ import annotations

from typing import Any

import click

from recap.cli.options import COUNT, FILE, FOLDER, combine, lm_option, load_captioner, pack_options, warn

limit_options = combine(
    click.option("--max-megabytes", type=COUNT, default=32, show_default=True, help="Largest request, in megabytes."),
    click.option("--max-pixels", type=COUNT, default=25_000_000, show_default=True, help="Most pixels of one picture."),
    click.option("--max-pictures", type=COUNT, default=16, show_default=True, help="Most pictures in one request."),
    click.option(
        "--max-queue",
        type=COUNT,
        default=64,
        show_default=True,
        help="Most pictures that wait at a time; more are refused for a moment (503).",
    ),
    click.option(
        "--max-batch",
        type=COUNT,
        default=32,
        show_default=True,
        help="Most pictures of different requests that are captioned together; 1 turns batching off.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(1),
        default=60,
        show_default=True,
        help="Seconds after which a request is given up.",
    ),
)


@click.command()
@pack_options
@lm_option("Language model to write with, or none (default: the pack's); recap info lists them.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 is every one of this machine's.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--host-name",
    "names",
    multiple=True,
    help="Host name under which browsers may call the service, such as photos.local; may be given several times.",
)
@click.option(
    "--api-keys",
    "key_file",
    type=FILE,
    help="File of the API keys that are accepted, one a line; RECAP_API_KEYS may hold more, between commas.",
)
@click.option("--insecure", is_flag=True, help="Let anybody in without a key, also from other machines.")
@click.option(
    "--allow-urls",
    is_flag=True,
    help="Let requests name pictures of the web by their address; private networks stay closed.",
)
@click.option(
    "--editable",
    is_flag=True,
    help="Let users look at the captions of the datastore and change them until the service ends.",
)
@click.option("--save-edits", is_flag=True, help="With --editable: write their changes into the folder of the pack.")
@click.option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages of this origin use the service, such as https://photos.example; may be given several times.",
)
@click.option("--search", type=FOLDER, help="Let users search the pictures of this folder by a text, and see them.")
@limit_options
def serve(pack: str, device: str, language_model: str | None, host: str, port: int, **options: Any) -> None:
    """Serve captions, retrieval and scores over HTTP.

    Listens on this machine only unless --host says otherwise, which needs a key. SIGTERM and Ctrl-C end it when
    everything that was accepted has been answered.
    """
    from recap.errors import MissingExtraError

    try:
        from recap.server.app import bind, run
        from recap.server.config import configure
    except ModuleNotFoundError as error:
        raise MissingExtraError("recap serve", "serve") from error
    config = configure(pack, host, **options)
    listening = bind(host, port)  # before the pack is loaded, so that a port in use is reported at once
    run(load_captioner(pack, device, language_model), config, listening, tell=warn)
