"""From whatever people call a picture to upright 8-bit RGB, or an ``ImageError`` that says why not.

Which kinds of pictures are read, told by their content, and how many pixels decoding one takes, whatever it says.

A header can lie: a TIFF of 16x16 pixels may consist of one tile of 24,000x24,000, a HEIF of thousands of tiles, and the
pixels of an AVIF are counted in its container while its decoder believes the stream inside.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from contextlib import nullcontext, suppress
from functools import cache

import numpy as np
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError

from recap.encoders.av1 import coded_sizes, tiled_pixels
from recap.encoders.inputs import label, read
from recap.errors import ImageError, InputError, MissingExtraError
from recap.types import ImageLike

_NAMES = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")

_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
_JPEG_XL = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
_RAW = (b"FUJIFILMCCD-RAW", b"IIU\0", b"IIRO", b"IIRS", b"MMOR", b"FOVb")
RAW_SUFFIXES = (
    *(".3fr", ".arw", ".cr2", ".cr3", ".dng", ".erf", ".iiq", ".mef", ".mos", ".mrw", ".nef", ".nrw", ".orf", ".pef"),
    *(".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f"),
)
_DNG_VERSION = 50706
"""Tag of a TIFF that says it is a camera's raw data."""

MAX_SCANS = 1000
"""Of a JPEG: each pass costs as much as the whole picture, and takes a few bytes."""

_WIDTH, _LENGTH, _TILE_WIDTH, _TILE_LENGTH = 256, 257, 322, 323
"""Tags of a TIFF."""


def formats() -> tuple[str, ...]:
    """Return the kinds that are read: not all that Pillow can, since some of its readers start other programs.

    HEIF is among them once a picture of that kind has come, where the package pillow-heif is installed.
    """
    Image.preinit()  # and not init, which imports forty readers more
    from PIL import TiffImagePlugin, WebPImagePlugin  # noqa: F401

    with suppress(ImportError):
        from PIL import AvifImagePlugin  # noqa: F401
    return tuple(name for name in _NAMES if name in Image.OPEN)


def open_picture(content: bytes) -> Image.Image:
    """Open the bytes of a file without decoding them; ``UnidentifiedImageError`` if they are none of ``formats``."""
    if content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS:
        register_heif()
    return Image.open(io.BytesIO(content), formats=formats())


@cache
def register_heif() -> bool:
    """Let Pillow read HEIC if the package pillow-heif is there, and return whether it is."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def decoded_pixels(picture: Image.Image, content: bytes | None = None) -> int:
    """Return how many pixels are decoded to show a picture; ``content`` is its file, where it came from one.

    Raises:
        ValueError: it would be decoded again and again.
    """
    shown = picture.width * picture.height
    if content is None:
        return shown
    if picture.format in ("JPEG", "MPO") and content.count(b"\xff\xda") > MAX_SCANS:
        raise ValueError(f"a JPEG of more than {MAX_SCANS} scans")
    if picture.format == "TIFF":
        return max(shown, _tiled_pixels(picture))
    if picture.format == "AVIF":
        sizes = coded_sizes(content)
        # half of the sum: transparency is a picture of its own, as large as the other
        return max([shown, sum(sizes) // 2, *sizes])
    if picture.format == "HEIF":
        return max(shown, tiled_pixels(content) // 2)
    return shown


def _tiled_pixels(picture: Image.Image) -> int:
    """Return the pixels of all tiles, which are decoded whole."""
    tags = getattr(picture, "tag_v2", {})
    width, length = tags.get(_TILE_WIDTH), tags.get(_TILE_LENGTH)
    if not (isinstance(width, int) and isinstance(length, int) and width > 0 and length > 0):
        return 0
    # the size as stored: the one that is shown may have been turned
    across, down = (int(tags.get(tag, side)) for tag, side in zip((_WIDTH, _LENGTH), picture.size, strict=True))
    return -(-across // width) * width * -(-down // length) * length


DEFAULT_MAX_PIXELS = 100_000_000
_LARGE = 16_000_000
"""A picture with more pixels is scaled down before anything else is done with it, and one at a time."""
_large_pictures = threading.Lock()

# A caller may pass one lazily opened picture twice, and Pillow's loading is not safe in two threads.
_callers_pictures = threading.Lock()


def max_pixels() -> int:
    """Return how many pixels a picture may have: ``RECAP_MAX_PIXELS``, or 100 million."""
    text = os.environ.get("RECAP_MAX_PIXELS", "")
    if not text:
        return DEFAULT_MAX_PIXELS
    if not text.isdigit() or int(text) == 0:
        raise InputError(f"RECAP_MAX_PIXELS must be a positive whole number, not {text!r}")
    return int(text)


def decode(source: ImageLike, *, shorter_side: int | None = None) -> Image.Image:
    """Return a picture as upright RGB: orientation applied, alpha on white, first frame, 16 bits scaled to 8.

    Args:
        source: whatever ``recap.encoders.inputs.read`` takes; a Pillow picture is left as it is.
        shorter_side: what the picture will be scaled down to. A JPEG at least four times that size is decoded at a
            half, a quarter or an eighth, never below twice the target, which is several times faster.
    """
    return decode_content(read(source), label(source), shorter_side)


def decode_content(content: bytes | Image.Image, name: str, shorter_side: int | None = None) -> Image.Image:
    """Do the work of ``decode`` for what ``read`` returned."""
    try:
        if isinstance(content, bytes):
            with _open(content, name) as picture:
                _check_size(picture, name, content)
                _draft(picture, shorter_side)
                with _large_pictures if _is_large(picture) else nullcontext():
                    return _upright_rgb(picture, shorter_side, in_place=True)
        _check_size(content, name)
        with _callers_pictures:
            return _upright_rgb(content, shorter_side)
    except InputError:  # an ImageError, or a limit that is no number
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name}: refused by Pillow's own limit, Image.MAX_IMAGE_PIXELS ({error})") from error
    except Exception as error:  # decoders of broken files raise nearly anything
        raise ImageError(f"{name}: cannot be decoded ({error or type(error).__name__})") from error


def digest(content: bytes | Image.Image, name: str) -> bytes:
    """Return the sha256 of the file's bytes, or of a picture's size and RGB values."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).digest()
    rgb = decode_content(content, name)
    return hashlib.sha256(b"rgb %dx%d " % rgb.size + rgb.tobytes()).digest()


def _open(content: bytes, name: str) -> Image.Image:
    """Open without decoding."""
    if not content:
        raise ImageError(f"{name}: the file is empty")
    try:
        picture = open_picture(content)
    except UnidentifiedImageError as error:
        why = _explain_kind(content, name) or f"not a picture that is read here ({', '.join(formats())})"
        raise ImageError(f"{name}: {why}") from error
    # of most cameras' raw data Pillow would show the thumbnail, as a TIFF
    if picture.format == "TIFF" and (_is_raw(content, name) or _DNG_VERSION in getattr(picture, "tag_v2", {})):
        raise ImageError(f"{name}: {RAW_ADVICE}")
    return picture


RAW_ADVICE = (
    "raw data of a camera is not read; develop it first (darktable-cli IN OUT.jpg), or take out the preview "
    "(exiftool -b -PreviewImage IN > OUT.jpg)"
)
"""What to do about raw data of a camera."""


def _explain_kind(content: bytes, name: str) -> str:
    """Return what to do about a picture of a known kind that is not read here."""
    if content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS:
        return str(MissingExtraError("HEIC", "heic"))
    if content.startswith(_JPEG_XL):
        return "JPEG XL is not read; convert it first (djxl IN OUT.png, or magick IN OUT.jpg)"
    return RAW_ADVICE if _is_raw(content, name) else ""


def _is_raw(content: bytes, name: str) -> bool:
    canon = content[8:10] == b"CR" or content[4:12] == b"ftypcrx "
    return canon or content.startswith(_RAW) or name.lower().endswith(RAW_SUFFIXES)


def _check_size(picture: Image.Image, name: str, content: bytes | None = None) -> None:
    """Refuse a picture by what would have to be decoded, before anything is."""
    pixels, limit = decoded_pixels(picture, content), max_pixels()
    if pixels == 0:
        raise ImageError(f"{name}: the picture has no pixels")
    if pixels > limit:
        size = f"{picture.width}x{picture.height}"
        if pixels > picture.width * picture.height:
            size += f" pixels, of which {pixels} have to be decoded,"
        else:
            size += " pixels"
        raise ImageError(f"{name}: {size} are over the limit of {limit}; RECAP_MAX_PIXELS raises it")


def _draft(picture: Image.Image, shorter_side: int | None) -> None:
    """Let the JPEG decoder scale down while it decodes, to no less than twice the wanted shorter side."""
    if shorter_side is None or not isinstance(picture, JpegImagePlugin.JpegImageFile):
        return
    for scale in (8, 4, 2):
        if min(picture.size) // scale >= 2 * shorter_side:
            picture.draft(None, (picture.width // scale, picture.height // scale))
            return


def _is_large(picture: Image.Image) -> bool:
    return picture.width * picture.height > _LARGE


def _upright_rgb(picture: Image.Image, shorter_side: int | None, *, in_place: bool = False) -> Image.Image:
    """Decode, apply the orientation and bring any mode to RGB, always in a new picture.

    ``in_place`` saves a copy where the picture is ours.
    """
    picture.load()
    upright = picture
    # EXIF that cannot be parsed says nothing about the orientation
    with suppress(Exception):
        if in_place:
            ImageOps.exif_transpose(picture, in_place=True)
        else:
            upright = ImageOps.exif_transpose(picture)
    factor = min(upright.size) // (2 * shorter_side) if shorter_side and _is_large(upright) else 1
    return _rgb(upright, max(factor, 1))


def _rgb(picture: Image.Image, factor: int) -> Image.Image:
    """Bring any mode to RGB, and a large picture to one part in ``factor`` of its size before more is done with it."""
    if picture.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bit(picture, factor)).convert("RGB")
    if factor > 1:
        picture = (picture if picture.mode in _REDUCIBLE else picture.convert("RGBA")).reduce(factor)
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return picture.convert("RGB")


_REDUCIBLE = ("L", "LA", "La", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr")


def _eight_bit(picture: Image.Image, factor: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Scale grey values of more than 8 bits to 0..255.

    ``I;16`` has a known range. The 32-bit modes do not say theirs: values up to 1 (floating point), 255 or 65535 are
    taken for these full ranges, and anything else is stretched from its least to its greatest value.
    """
    values = np.nan_to_num(np.asarray(picture)[::factor, ::factor].astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if picture.mode.startswith("I;16"):
        low, high = 0.0, 65535.0
    elif low >= 0 and high <= 65535:
        ranges = (1.0, 255.0, 65535.0) if picture.mode == "F" else (255.0, 65535.0)
        low, high = 0.0, next(limit for limit in ranges if high <= limit)
    scaled = (values - low) * (255.0 / max(high - low, 1e-300))
    return np.rint(scaled).astype(np.uint8)
