"""``recap``: the entry point. Heavy imports happen inside the commands, so that help answers at once."""

from __future__ import annotations

import os
import sys

import click

from recap import __version__
from recap.cli.caption import caption
from recap.cli.convert import convert
from recap.cli.fit import fit
from recap.cli.info import info
from recap.cli.retrieve import retrieve
from recap.cli.setup import setup
from recap.errors import RecapError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="recap")
def cli() -> None:
    """Caption images in your own domain, without training.

    Captions go to standard output, everything else to standard error. Exit code 0: all went well;
    1: some inputs failed, and were named; 2: the command could not be carried out.
    """


for command in (caption, retrieve, fit, setup, info, convert):
    cli.add_command(command)


def main() -> None:
    """Run the command line; an expected error is one line on standard error, not a traceback."""
    try:
        cli()
    except RecapError as error:
        click.echo(f"recap: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        # the reader of our output has gone, as `head` does; keep the interpreter from complaining about it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
