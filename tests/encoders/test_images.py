from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, TiffImagePlugin, features

from recap.encoders import images
from recap.encoders.av1 import TooManyPartsError, coded_sizes, tiled_pixels
from recap.encoders.images import decode, decoded_pixels, digest, open_picture, read
from recap.errors import ImageError, InputError

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
    for tag, kind, wanted in tags:
        numbers = wanted if wanted is not None else (0,) * count
        packed = b"".join(struct.pack("<I" if kind == 4 else "<H", number) for number in numbers)
        if wanted is None:
            place_of_offsets = start + len(values)
        if len(packed) <= 4 and wanted is not None:
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


def saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def colours(width: int = 6, height: int = 4) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("form", ["path", "text", "bytes", "picture"])
def test_every_form_of_input(tmp_path: Path, form: str) -> None:
    values = colours()
    content = saved(Image.fromarray(values), "PNG")
    (tmp_path / "a.png").write_bytes(content)
    source = {
        "path": tmp_path / "a.png",
        "text": str(tmp_path / "a.png"),
        "bytes": content,
        "picture": Image.fromarray(values),
    }[form]
    picture = decode(source)
    assert picture.mode == "RGB"
    assert np.array_equal(np.asarray(picture), values)


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, lambda a: a),
        (2, lambda a: a[:, ::-1]),
        (3, lambda a: a[::-1, ::-1]),
        (4, lambda a: a[::-1]),
        (5, lambda a: a.transpose(1, 0, 2)),
        (6, lambda a: np.rot90(a, -1)),
        (7, lambda a: a[::-1, ::-1].transpose(1, 0, 2)),
        (8, lambda a: np.rot90(a, 1)),
    ],
)
def test_orientation_is_applied(orientation: int, upright: object) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(Image.fromarray(colours()), "PNG", exif=exif.tobytes())
    assert np.array_equal(np.asarray(decode(content)), upright(colours()))


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_broken_exif_is_ignored() -> None:
    content = saved(Image.fromarray(colours()), "PNG", exif=b"Exif\0\0MM\0*\0\0\0\xff\xff\xff")
    assert np.array_equal(np.asarray(decode(content)), colours())


def test_alpha_goes_onto_white() -> None:
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[0, :, 0] = 200
    rgba[0, :, 3] = (0, 102, 255)  # 102 is two fifths
    result = np.asarray(decode(saved(Image.fromarray(rgba), "PNG")))
    assert result[0, 0].tolist() == [255, 255, 255]
    assert np.abs(result[0, 1].astype(int) - [233, 153, 153]).max() <= 1
    assert result[0, 2].tolist() == [200, 0, 0]


def test_palette_with_and_without_transparency() -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.putdata([0, 1])
    assert np.asarray(decode(saved(picture, "PNG")))[0].tolist() == [[10, 20, 30], [200, 100, 50]]
    see_through = np.asarray(decode(saved(picture, "PNG", transparency=0)))
    assert see_through[0].tolist() == [[255, 255, 255], [200, 100, 50]]


def test_colour_key_of_rgb_is_transparency() -> None:
    picture = Image.fromarray(np.array([[[1, 2, 3], [9, 9, 9]]], np.uint8))
    result = np.asarray(decode(saved(picture, "PNG", transparency=(1, 2, 3))))
    assert result[0].tolist() == [[255, 255, 255], [9, 9, 9]]


@pytest.mark.parametrize("mode", ["L", "LA", "1"])
def test_grey(mode: str) -> None:
    grey = Image.fromarray(np.array([[0, 255, 0, 255]], np.uint8))
    result = np.asarray(decode(saved(grey.convert(mode), "PNG")))
    assert result.tolist() == [[[0] * 3, [255] * 3, [0] * 3, [255] * 3]]


def test_cmyk_jpeg() -> None:
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    result = np.asarray(decode(saved(red, "JPEG", quality=95))).astype(int)
    assert np.abs(result - [255, 0, 0]).max() < 12


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled(kind: str) -> None:
    levels = (np.arange(256, dtype=np.uint32) * 257).astype(np.uint16).reshape(16, 16)
    result = np.asarray(decode(saved(Image.fromarray(levels), kind)))
    assert np.array_equal(result[:, :, 0].ravel(), np.arange(256))
    assert np.array_equal(result[:, :, 0], result[:, :, 2])


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([0, 128, 255], np.int32, [0, 128, 255]),
        ([0, 32896, 65535], np.int32, [0, 128, 255]),
        ([-1000, 0, 1000], np.int32, [0, 128, 255]),
        ([0.0, 0.5, 1.0], np.float32, [0, 128, 255]),
        ([0.0, 51.0, 255.0], np.float32, [0, 51, 255]),
        ([np.nan, 0.2, 1.0], np.float32, [0, 51, 255]),
        ([7, 7, 7], np.int32, [7, 7, 7]),
        ([70000, 70000, 70000], np.int32, [0, 0, 0]),
    ],
)
def test_thirty_two_bits_are_scaled(values: list[float], kind: type, expected: list[int]) -> None:
    result = np.asarray(decode(Image.fromarray(np.array([values], kind))))
    assert np.abs(result[0, :, 0].astype(int) - expected).max() <= 1


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_first_frame_of_an_animation(kind: str) -> None:
    if kind == "WEBP" and not features.check("webp"):
        pytest.skip("this Pillow has no WebP")
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    content = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert np.asarray(decode(content))[4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", ["WEBP", "AVIF"])
def test_newer_formats(kind: str) -> None:
    if not features.check(kind.lower()):
        pytest.skip(f"this Pillow has no {kind}")
    result = np.asarray(decode(saved(Image.new("RGB", (32, 32), "red"), kind, quality=95))).astype(int)
    assert np.abs(result[16, 16] - [255, 0, 0]).max() < 12


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_truncated_file(tmp_path: Path, kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    path = tmp_path / "cut.img"
    content = saved(Image.fromarray(noise), kind)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ImageError, match=r"cut\.img"):
        decode(path)


def test_not_pictures(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    for name, reason in [
        ("notes.txt", "not a picture"),
        ("empty.jpg", "empty"),
        ("absent.png", "no such file"),
        (".", "not a file"),
        ("nul\0l", "read|no such file"),
    ]:
        with pytest.raises(ImageError, match=reason) as caught:
            decode(tmp_path / name)
        assert str(tmp_path) in str(caught.value)
    with pytest.raises(ImageError, match="no pixels"):
        decode(Image.new("RGB", (0, 5)))
    with pytest.raises(InputError, match="int"):
        decode(5)  # type: ignore[arg-type]


def decode_apart(content: bytes, shown: str) -> subprocess.CompletedProcess[bytes]:
    """Decode in a process where nobody has registered the reader of HEIC, and where it is gone afterwards."""
    code = "import sys; from recap.encoders.images import decode; picture = decode(sys.stdin.buffer.read()); "
    code += f"print({shown})"
    return subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=False)


def test_heic_is_read_where_its_package_is_installed() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    values = np.zeros((48, 64, 3), np.uint8)
    values[:24, :, 0] = 250
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    pillow_heif.from_pillow(Image.fromarray(values)).save(file, quality=95, exif=exif.tobytes())
    done = decode_apart(file.getvalue(), "*picture.size, picture.getpixel((5, 5))[0], picture.getpixel((40, 5))[0]")
    width, height, left, right = map(int, done.stdout.split())
    assert (width, height) == (48, 64)
    assert left < 20
    assert right > 230


def test_a_heic_is_not_larger_than_its_header_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    monkeypatch.setenv("RECAP_MAX_PIXELS", str(64 * 64))
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.new("RGB", (1024, 1024), "red")).save(file, quality=10)
    content = file.getvalue()
    size = struct.pack(">II", 1024, 1024)
    assert content.count(b"ispe\0\0\0\0" + size) == 1
    done = decode_apart(content.replace(size, struct.pack(">II", 64, 64)), "picture.size")
    assert b"exceeds the maximum image size" in done.stderr


def heif_box(kind: bytes, *parts: bytes) -> bytes:
    return struct.pack(">I4s", 8 + sum(map(len, parts)), kind) + b"".join(parts)


def heif(parts: dict[int, list[int]], planes: Iterable[int] = ()) -> bytes:
    """Return the container of a HEIF: item 1 has 64x64 pixels, every other 512x512."""
    ispe = [heif_box(b"ispe", bytes(4), struct.pack(">II", side, side)) for side in (64, 512)]
    owned = b"".join(struct.pack(">HBB", item, 1, 0x80 | min(item + 1, 3)) for item in range(1, 10))
    ipma = heif_box(b"ipma", bytes(4), struct.pack(">I", 9), owned)
    named = [(b"dimg", *entry) for entry in parts.items()] + [(b"auxl", item, [1]) for item in planes]
    refs = [heif_box(kind, struct.pack(f">HH{len(to)}H", item, len(to), *to)) for kind, item, to in named]
    described = heif_box(b"iprp", heif_box(b"ipco", heif_box(b"hvcC", bytes(9)), *ispe), ipma)
    return heif_box(b"ftyp", b"heic") + heif_box(b"meta", bytes(4), described, heif_box(b"iref", bytes(4), *refs))


@pytest.mark.parametrize(
    ("parts", "planes", "pixels"),
    [
        ({}, (), 0),
        ({1: [2, 3, 4, 5]}, (), 4 * 512 * 512),
        ({1: [2] * 900}, (), 900 * 512 * 512),
        ({1: [2] * 100, 2: [3] * 100}, (), 100 * 100 * 512 * 512),
        ({1: [2], 6: [3, 4]}, (6,), 3 * 512 * 512),
    ],
)
def test_tiles_of_a_heif_count_as_often_as_they_are_used(
    parts: dict[int, list[int]], planes: tuple[int, ...], pixels: int
) -> None:
    assert tiled_pixels(heif(parts, planes)) == pixels


def test_a_heif_without_end_is_refused() -> None:
    for parts in ({1: [1]}, {1: [2], 2: [1]}, {1: [2] * 60_000, 3: [2] * 60_000}):
        with pytest.raises(TooManyPartsError):
            tiled_pixels(heif(parts))
    whole = heif({1: [2]})
    with pytest.raises(TooManyPartsError, match="twice"):
        tiled_pixels(whole + whole)


def test_heic_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    images.register_heif.cache_clear()
    with pytest.raises(ImageError, match=r"HEIC needs an optional part: pip install .*\[heic\]'"):
        decode(b"\0\0\0\x18ftypheic" + bytes(100))
    images.register_heif.cache_clear()


RAW = "raw data of a camera.*develop"


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("a.jxl", b"\xff\x0a" + bytes(50), "JPEG XL.*convert"),
        ("a.jxl", b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(50), "JPEG XL.*convert"),
        ("a.cr3", b"\0\0\0\x18ftypcrx " + bytes(50), RAW),
        ("a.raf", b"FUJIFILMCCD-RAW 0201" + bytes(50), RAW),
        ("a.RW2", b"IIU\0" + bytes(50), RAW),
        ("a.nef", saved(Image.new("RGB", (8, 8)), "TIFF"), RAW),
        (
            "a.tif",
            saved(Image.new("RGB", (8, 8)), "TIFF", tiffinfo={50706: b"\1\4\0\0"}),
            RAW,
        ),
    ],
)
def test_kinds_that_are_not_read_say_what_to_do(tmp_path: Path, name: str, content: bytes, advice: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ImageError, match=f"{name}: {advice}"):
        decode(tmp_path / name)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["", "PNG", "JPEG", "GIF", "TIFF", "BMP"]), st.integers(0, 200))
def test_damage_gives_a_picture_or_an_image_error(noise: bytes, kind: str, place: int) -> None:
    content = saved(Image.fromarray(colours(20, 20)), kind) if kind else b""
    with suppress(ImageError):
        assert decode(content[:place] + noise + content[place + len(noise) :]).mode == "RGB"


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header promises a size, with next to nothing behind it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bombs_are_refused_by_their_header(monkeypatch: pytest.MonkeyPatch) -> None:
    # the commands lift Pillow's own limit for the whole process
    before = 89_478_485
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", before)
    with pytest.raises(ImageError, match="over the limit of 100000000"):
        decode(png_claiming(20_000, 6_000))
    with pytest.raises(ImageError, match="MAX_IMAGE_PIXELS"):
        decode(png_claiming(50_000, 50_000))
    assert before == Image.MAX_IMAGE_PIXELS


def test_limit_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAP_MAX_PIXELS", "23")
    with pytest.raises(ImageError, match="over the limit of 23"):
        decode(saved(Image.fromarray(colours()), "PNG"))
    monkeypatch.setenv("RECAP_MAX_PIXELS", "24")
    assert decode(saved(Image.fromarray(colours()), "PNG")).size == (6, 4)
    monkeypatch.setenv("RECAP_MAX_PIXELS", "many")
    with pytest.raises(InputError, match="RECAP_MAX_PIXELS"):
        decode(saved(Image.fromarray(colours()), "PNG"))


@pytest.mark.parametrize(
    ("size", "decoded"),
    [((100, 63), (100, 63)), ((100, 64), (50, 32)), ((130, 200), (33, 50)), ((1000, 128), (250, 32))],
)
def test_large_jpegs_are_decoded_small_but_not_too_small(size: tuple[int, int], decoded: tuple[int, int]) -> None:
    content = saved(Image.linear_gradient("L").resize(size).convert("RGB"), "JPEG", quality=95)
    small = decode(content, shorter_side=16)
    assert small.size == decoded
    assert min(small.size) >= 2 * 16
    full = decode(content)
    assert full.size == size
    difference = np.asarray(full.resize((20, 20))).astype(int) - np.asarray(small.resize((20, 20)))
    assert np.abs(difference).max() <= 8


def test_only_jpegs_are_drafted_and_never_a_callers_picture(tmp_path: Path) -> None:
    large = Image.new("RGB", (400, 400), "red")
    assert decode(saved(large, "PNG"), shorter_side=16).size == (400, 400)
    large.save(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as mine:
        assert decode(mine, shorter_side=16).size == (400, 400)
        assert mine.size == (400, 400)


def test_a_callers_picture_is_left_as_it_is() -> None:
    picture = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    decode(picture)
    assert picture.mode == "RGBA"
    assert picture.getpixel((0, 0)) == (255, 0, 0, 0)
    plain = Image.new("RGB", (4, 4))
    decode(plain).putpixel((0, 0), (9, 9, 9))
    assert plain.getpixel((0, 0)) == (0, 0, 0)


def test_one_lazy_picture_in_many_threads() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = saved(Image.fromarray(colours(60, 40)), "PNG", exif=exif.tobytes())
    for _ in range(5):
        lazy = Image.open(io.BytesIO(content))
        start = threading.Barrier(4)

        def work(picture: Image.Image = lazy, start: threading.Barrier = start) -> np.ndarray:
            start.wait()
            return np.asarray(decode(picture))

        with ThreadPoolExecutor(4) as pool:
            results = [future.result() for future in [pool.submit(work) for _ in range(4)]]
        assert all(np.array_equal(result, np.rot90(colours(60, 40), -1)) for result in results)


def test_digest_tells_contents_apart(tmp_path: Path) -> None:
    first, second = Image.fromarray(colours()), Image.fromarray(colours()[::-1])
    assert digest(first, "") != digest(second, "")
    assert digest(first, "") == digest(first.copy(), "")
    assert digest(Image.new("RGB", (2, 8)), "") != digest(Image.new("RGB", (4, 4)), "")
    (tmp_path / "a.png").write_bytes(saved(first, "PNG"))
    assert digest(read(tmp_path / "a.png"), "") == digest(saved(first, "PNG"), "")


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "I;16", "CMYK"])
def test_large_pictures_are_scaled_down_first_and_look_the_same(mode: str) -> None:
    size = (5000, 4000)
    ramp = np.linspace(0, 255, size[0], dtype=np.uint8)[None].repeat(size[1], 0)
    if mode == "I;16":
        picture = Image.fromarray(ramp.astype(np.uint16) * 257)
    else:
        picture = Image.fromarray(ramp).convert("RGBA" if mode == "RGBA" else "RGB").convert(mode)
    buffer = io.BytesIO()
    picture.save(buffer, "TIFF")
    small = decode(buffer.getvalue(), shorter_side=100)
    assert small.mode == "RGB"
    assert min(small.size) == 200
    whole = decode(buffer.getvalue()).resize((10, 8), Image.Resampling.BOX)
    shown = np.asarray(small.resize((10, 8), Image.Resampling.BOX), int)
    assert np.abs(shown - np.asarray(whole, int)).max() <= 2
