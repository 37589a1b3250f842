"""``recap``: the entry point. Heavy imports happen inside the commands, so that help answers at once."""

from __future__ import annotations

import errno
import sys
import warnings

import click

from recap import __version__
from recap.cli.alt import alt
from recap.cli.augment import augment
from recap.cli.caption import caption
from recap.cli.correlate import correlate
from recap.cli.datastore import datastore
from recap.cli.embed import embed
from recap.cli.experiment import experiment
from recap.cli.fit import fit
from recap.cli.info import info
from recap.cli.pack import pack
from recap.cli.retrieve import retrieve, search
from recap.cli.score import score
from recap.cli.serve import serve
from recap.cli.setup import convert, setup
from recap.cli.tags import tags
from recap.errors import RecapError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="recap")
def cli() -> None:
    """Caption images in your own domain, without training.

    Captions go to standard output, everything else to standard error. Exit code 0: all went well;
    1: some inputs failed, and were named; 2: the command could not be carried out; 130: interrupted.
    """


CAPTIONS = (alt, caption, retrieve, search, serve, tags)
PACKS = (augment, convert, datastore, embed, fit, info, pack, setup)
MEASURES = (correlate, experiment, score)
for command in (*CAPTIONS, *PACKS, *MEASURES):
    cli.add_command(command)


def main() -> None:
    """Run the command line; an expected error is one line on standard error, not a traceback."""
    warnings.showwarning = lambda message, *_, **__: click.echo(f"recap: {message}", err=True)
    # names of files need not be UTF-8, and are printed as they are
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    try:
        code = cli.main(prog_name="recap", standalone_mode=False)
        sys.stdout.flush()
    except click.Abort:
        click.echo("recap: interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (RecapError, OSError) as error:
        # what writes files names them
        full = getattr(error, "errno", None) == errno.ENOSPC and not getattr(error, "filename", None)
        click.echo(f"recap: {'no room left on the disk to write what is printed' if full else error}", err=True)
        sys.exit(2)
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
