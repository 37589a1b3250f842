"""Pictures that say less than they are."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin, features

from recap.encoders.av1 import TooManyPartsError, coded_sizes
from recap.encoders.formats import decoded_pixels, open_picture
from recap.encoders.images import decode
from recap.errors import ImageError

needs_avif = pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")


def tiled_tiff(size: tuple[int, int], tile: tuple[int, int]) -> bytes:
    """A TIFF of one size made of tiles of another."""
    data = zlib.compress(bytes(min(tile[0] * tile[1] * 3, 1 << 20)))
    count = -(-size[0] // tile[0]) * -(-size[1] // tile[1])
    tags = [
        (256, 4, (size[0],)),
        (257, 4, (size[1],)),
        (258, 3, (8, 8, 8)),
        (259, 3, (8,)),
        (262, 3, (2,)),
        (277, 3, (3,)),
        (284, 3, (1,)),
        (322, 4, (tile[0],)),
        (323, 4, (tile[1],)),
        (324, 4, None),
        (325, 4, (len(data),) * count),
    ]
    start = 8 + 2 + 12 * len(tags) + 4
    values, entries = b"", b""
    for tag, kind, given in tags:
        numbers = given if given is not None else (0,) * count
        packed = b"".join(struct.pack("<I" if kind == 4 else "<H", number) for number in numbers)
        if given is None:
            place_of_offsets = start + len(values)
        if len(packed) <= 4 and given is not None:
            entries += struct.pack("<HHI", tag, kind, len(numbers)) + packed.ljust(4, b"\0")
        else:
            entries += struct.pack("<HHII", tag, kind, len(numbers), start + len(values))
            values += packed
    offset = start + len(values)
    whole = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + values + data
    offsets = struct.pack("<I", offset) * count
    return whole[:place_of_offsets] + offsets + whole[place_of_offsets + len(offsets) :]


def avif(width: int, height: int, claims: tuple[int, int] | None = None, mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture = Image.effect_noise((width, height), 60).convert(mode)
    if mode == "RGBA":
        picture.putalpha(100)
    picture.save(buffer, "AVIF", **options)
    content = buffer.getvalue()
    if claims is None:
        return content
    return content.replace(struct.pack(">II", width, height), struct.pack(">II", *claims))


def jpeg_of_many_scans(count: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (64, 64)).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    scan = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + scan * count + content[-2:]


def test_a_tiff_counts_by_its_tiles() -> None:
    honest = tiled_tiff((100, 50), (64, 64))
    assert decoded_pixels(open_picture(honest), honest) == 128 * 64
    assert decode(honest).size == (100, 50)
    content = tiled_tiff((16, 16), (24_000, 24_000))
    tracemalloc.start()
    with pytest.raises(ImageError, match="576000000 have to be decoded"):
        decode(content)
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


@needs_avif
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_honest_avif_counts_by_its_pixels(mode: str) -> None:
    content = avif(300, 200, mode=mode)
    assert decoded_pixels(open_picture(content), content) == 60_000
    assert decode(content).size == (300, 200)


@needs_avif
def test_an_animated_avif_counts_by_its_frames() -> None:
    frames = [Image.effect_noise((120, 80), 60).convert("RGB") for _ in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "AVIF", save_all=True, append_images=frames[1:])
    assert max(coded_sizes(buffer.getvalue())) == 9600


@needs_avif
def test_an_avif_whose_header_lies_is_counted_by_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    content = avif(1200, 1000, claims=(16, 16))
    assert open_picture(content).size == (16, 16)
    monkeypatch.setenv("RECAP_MAX_PIXELS", "1000000")
    with pytest.raises(ImageError, match="1200000 have to be decoded"):
        decode(content)


@needs_avif
@pytest.mark.parametrize("seed", range(40))
def test_damaged_containers_are_passed_over(seed: int) -> None:
    draws = np.random.default_rng(seed)
    content = bytearray(avif(64, 64))
    for place in draws.integers(0, 400, 8):
        content[place] = draws.integers(256)
    with suppress(TooManyPartsError):
        assert all(size >= 0 for size in coded_sizes(bytes(content)))


def test_a_container_without_end_is_left() -> None:
    with pytest.raises(TooManyPartsError):
        coded_sizes(struct.pack(">I4s", 8, b"free") * 200_000)


def test_a_jpeg_of_many_scans_is_refused() -> None:
    assert decode(jpeg_of_many_scans(10)).size == (64, 64)
    with pytest.raises(ImageError, match="more than 1000 scans"):
        decode(jpeg_of_many_scans(2000))


def test_no_other_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    path = tmp_path / "holiday.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(ImageError, match="not a picture that is read here"):
        decode(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["PCX", "PPM", "ICO", "TGA", "EPS", "IM"])
def test_other_formats_are_named_by_what_is_read(kind: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, kind)
    with pytest.raises(ImageError, match="JPEG, PNG, WEBP"):
        decode(buffer.getvalue())


def test_the_tags_are_those_of_tiles() -> None:
    assert (TiffImagePlugin.TILEWIDTH, TiffImagePlugin.TILELENGTH) == (322, 323)
