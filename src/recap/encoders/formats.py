"""Which kinds of pictures are read, told by their content, and how many pixels decoding one takes, whatever it says.

A header can lie: a TIFF of 16x16 pixels may consist of one tile of 24,000x24,000, and the pixels of an AVIF are counted
in its container while its decoder believes the stream inside.
"""

from __future__ import annotations

import io

from PIL import Image

from recap.encoders.av1 import coded_sizes

Image.init()
_NAMES = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")

MAX_SCANS = 1000
"""Of a JPEG: each pass costs as much as the whole picture, and takes a few bytes."""

_WIDTH, _LENGTH, _TILE_WIDTH, _TILE_LENGTH = 256, 257, 322, 323
"""Tags of a TIFF."""


def formats() -> tuple[str, ...]:
    """Return the kinds that are read: not all that Pillow can, since some of its readers start other programs.

    HEIF is among them once the package pillow-heif has registered its opener.
    """
    return tuple(name for name in _NAMES if name in Image.OPEN)


def open_picture(content: bytes) -> Image.Image:
    """Open the bytes of a file without decoding them; ``UnidentifiedImageError`` if they are none of ``formats``."""
    return Image.open(io.BytesIO(content), formats=formats())


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
