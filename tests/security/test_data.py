"""Data sets, pages, prompts and pictures of strangers: no hang, no more memory than they are worth, nothing outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import threading
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from recap.batch.metadata import read_description, write_description
from recap.datasets import read_pairs
from recap.datasets.pairs import MAX_TEXT_BYTES
from recap.datasets.records import read_rows
from recap.errors import InputError

PROMPT, PAGE = (
    "from recap.server.routes_chat import read_prompt as read",
    "from recap.alt.tags import decode_page, start_tags",
)
LONG = {
    "spaces after a question": f"{PROMPT}; read('is there a' + ' ' * 90_000 + 'x')",
    "spaces in a question": f"{PROMPT}; read('is it a' + ' ' * 90_000 + 'in x?')",
    "quotes that open": f"{PROMPT}; read(chr(0x201e) * 90_000)",
    "punycode": f"{PAGE}; decode_page(b'<meta charset=punycode>' + b'a' * 900_000 + b'-b')",
    "tags that do not end": f"{PAGE}; list(start_tags(decode_page(b'<meta' * 60_000)[0]))",
}


@pytest.mark.parametrize("code", LONG.values(), ids=LONG)
def test_what_is_long_is_read_in_time(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_a_text_of_line_breaks_ends_an_archive(tmp_path: Path) -> None:
    """A packed one of a megabyte took gigabytes."""
    path, texts = tmp_path / "a.tar.gz", b"\n" * (MAX_TEXT_BYTES + 1)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (("a.jpg", b"1"), ("a.txt", b"fine"), ("b.jpg", b"2"), ("b.txt", texts)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    broken: list[InputError] = []
    assert [pair.captions for pair in read_pairs(path, on_broken=broken.append)] == [("fine",)]
    assert "over the limit of 16 MiB" in str(broken[-1])


def test_a_value_that_every_row_has_is_read_row_by_row(tmp_path: Path) -> None:
    """A table of some kilobytes that says the same long text in every row took all memory."""
    text = pyarrow.array(["x" * 100_000_000], pyarrow.large_string())
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(500, np.int32)), text)
    names = pyarrow.array([f"{number}.jpg" for number in range(500)])
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"image": names, "caption": column}), path, compression="zstd")
    before = pyarrow.total_allocated_bytes()
    rows = read_rows(path)
    next(rows)
    assert pyarrow.total_allocated_bytes() - before < 1 << 30
    rows.close()
    broken: list[InputError] = []
    (tmp_path / "a.jsonl").write_text(json.dumps({"image": "a.jpg", "caption": "x" * 200_000}))
    with pytest.raises(InputError, match="no pair"):
        read_pairs(tmp_path / "a.jsonl", on_broken=broken.append)
    assert "a caption of 200000 characters" in str(broken[0])


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"image": "a.jpg", "caption": ' + "1" * 5000 + "}", '{"image": 1e999}']
)
def test_strange_json_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{line}\n{{"image": "b.jpg", "caption": "a wall"}}\n')
    broken: list[InputError] = []
    assert [pair.id for pair in read_pairs(tmp_path / "a.jsonl", on_broken=broken.append)] == ["b.jpg"]
    assert "a.jsonl:1" in str(broken[0])


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.jpg"])
def test_nobody_waits_for_a_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            if name == "a.jpg":
                write_description(tmp_path / name, "a wall", generator="recap")
            else:
                read_pairs(tmp_path / name)
        except InputError as error:
            errors.append(error)

    worker = threading.Thread(target=read, daemon=True)
    worker.start()
    worker.join(60)
    assert "not a file" in str(errors[0])


def test_an_original_is_not_kept_through_a_link(tmp_path: Path) -> None:
    """A link that leads to nothing yet let a picture become any file."""
    picture = tmp_path / "set" / "a.png"
    picture.parent.mkdir()
    Image.new("RGB", (20, 20)).save(picture)
    content = picture.read_bytes()
    (picture.parent / "a.png_original").symlink_to(tmp_path / "elsewhere")
    write_description(picture, "a wall", generator="recap", keep_original=True)
    assert not (tmp_path / "elsewhere").exists()
    assert (picture.parent / "a.png_original").read_bytes() == content
    described = read_description(picture)
    assert described is not None
    assert described.text == "a wall"
