"""The program in the test's own process: no interpreter to start and no library to load once more."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from PIL import Image

from recap.cli.main import main


def recap(*arguments: object, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command line with streams, warnings and limits of its own, as if in a process of its own."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    given = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
    streams = {"argv": ["recap", *map(str, arguments)], "stdin": given, "stdout": out, "stderr": err}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        for name, value in streams.items():
            patch.setattr(sys, name, value)
        patch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
        with pytest.raises(SystemExit) as ended:
            main()
    told, said = (stream.buffer.getvalue().decode() for stream in (out, err))
    assert ended.value.code == code, said
    return subprocess.CompletedProcess(arguments, code, told, said)


def part_of(pairs_folder: Path, folder: Path, *numbers: str) -> Path:
    """Copy the pairs whose names end in these numbers to a new folder."""
    folder.mkdir()
    for path in pairs_folder.iterdir():
        if path.stem[-1] in numbers:
            shutil.copy(path, folder / path.name)
    return folder


def facts(pack: Path) -> dict:
    """Return what ``recap pack info`` says of a pack."""
    return json.loads(recap("pack", "info", pack, "--json").stdout)
