"""``python -m recap``: the command line."""

from recap.cli.main import main

main()
