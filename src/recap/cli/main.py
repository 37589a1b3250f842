"""``recap``: the entry point. Heavy imports happen inside the commands, so that help answers at once."""

from __future__ import annotations

import errno
import sys
import warnings
from collections import UserDict
from importlib import import_module

import click

from recap import __version__
from recap.errors import RecapError


class Commands(UserDict[str, click.Command]):
    """The commands by their names, each imported from the module it stands in when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        command: click.Command = getattr(import_module(f"recap.cli.{MODULES[name]}"), name)
        return command


OWN = ("alt", "augment", "caption", "correlate", "datastore", "embed", "experiment", "fit", "info", "pack")
MODULES = {name: name for name in (*OWN, "retrieve", "score", "serve", "setup", "tags")}
MODULES |= {"convert": "setup", "search": "retrieve"}
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(commands=Commands.fromkeys(MODULES), context_settings=SETTINGS)
@click.version_option(__version__, prog_name="recap")
def cli() -> None:
    """Caption images in your own domain, without training.

    Captions go to standard output, everything else to standard error. Exit code 0: all went well;
    1: some inputs failed, and were named; 2: the command could not be carried out; 130: interrupted.
    """


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
