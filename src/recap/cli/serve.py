"""``recap serve``: captions over HTTP."""

from __future__ import annotations

from typing import Any

import click

from recap.cli.options import COUNT, FILE, FOLDER, combine, lm_option, load_captioner, pack_options, warn

limit_options = combine(
    click.option("--max-megabytes", type=COUNT, default=32, show_default=True, help="Size of a request."),
    click.option("--max-pixels", type=COUNT, default=25_000_000, show_default=True, help="Pixels of a picture."),
    click.option("--max-pictures", type=COUNT, default=16, show_default=True, help="Pictures of a request."),
    click.option("--max-queue", type=COUNT, default=64, show_default=True, help="Pictures that may wait."),
    click.option("--max-batch", type=COUNT, default=32, show_default=True, help="Batch size; 1 turns batching off."),
    click.option("--timeout", type=click.FloatRange(1), default=60, show_default=True, help="Seconds until an answer."),
)


@click.command()
@pack_options
@lm_option("Another language model than the pack's; none for no language model.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option(
    "--host-name", "names", multiple=True, help="A name the service is called by; may be given several times."
)
@click.option(
    "--api-keys",
    "key_file",
    type=FILE,
    help="A file of keys, one a line; RECAP_API_KEYS holds some as well, joined by commas.",
)
@click.option("--insecure", is_flag=True, help="Listen on other addresses than loopback without a key.")
@click.option("--allow-urls", is_flag=True, help="Fetch pictures by address, never from a private network.")
@click.option("--editable", is_flag=True, help="Let users look at the datastore and change it, in memory.")
@click.option("--save-edits", is_flag=True, help="With --editable: change the pack's folder too.")
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
