"""Children that decode: the same pixels, and a limit on what a picture can cost."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap.encoders import load_encoder
from recap.encoders.apart import ApartDecoder
from recap.encoders.images import decode
from recap.errors import ImageError

MEMORY = 700 << 20


@pytest.fixture(scope="module")
def decoder() -> Iterator[ApartDecoder]:
    made = ApartDecoder(processes=1, max_pixels=10**9, memory=MEMORY, seconds=30)
    made.start()
    yield made
    made.close()


def saved(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("side", [None, 20])
def test_the_pixels_are_the_same(decoder: ApartDecoder, kind: str, side: int | None) -> None:
    content = saved(noise(400, 300), kind)
    ours = decode(content, shorter_side=side)
    assert ours.tobytes() == decoder.decode(content, side).tobytes()


def test_vectors_are_the_same_and_errors_stay_in_their_place(decoder: ApartDecoder, encoder_folder: Path) -> None:
    encoder = load_encoder(f"onnx:{encoder_folder}").image
    contents = [saved(noise(90, 50), "JPEG"), b"broken", saved(noise(64, 40))]
    apart, here = list(decoder.encode_each(encoder, contents)), list(encoder.encode_each(contents))
    assert str(apart[1]) == str(here[1])
    for place in (0, 2):
        assert np.array_equal(apart[place], here[place])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory are Linux'")
def test_memory_is_limited_and_the_next_picture_is_decoded(decoder: ApartDecoder) -> None:
    large = saved(Image.new("L", (30_000, 20_000)), compress_level=1)  # 600 million pixels, 2.4 GB as RGB
    with pytest.raises(ImageError, match=r"bytes>: (cannot be decoded|decoding took too much memory)"):
        decoder.decode(large)
    assert decoder.decode(saved(noise(8, 8))).size == (8, 8)


def test_a_child_that_dies_costs_one_picture(decoder: ApartDecoder) -> None:
    picture = saved(noise(600, 600))
    child = decoder._idle.get()
    os.kill(child._process.pid, signal.SIGSTOP)
    decoder._idle.put(child)
    threading.Timer(0.3, lambda: os.kill(child._process.pid, signal.SIGKILL)).start()
    with pytest.raises(ImageError, match="too much memory, or crashed"):
        decoder.decode(picture)
    assert decoder.decode(saved(noise(8, 8))).size == (8, 8)


def test_a_picture_that_takes_too_long_is_given_up() -> None:
    hasty = ApartDecoder(processes=1, max_pixels=10**9, memory=MEMORY, seconds=1)
    hasty.start()
    try:
        child = hasty._idle.get()
        os.kill(child._process.pid, signal.SIGSTOP)  # as good as a decoder without end
        hasty._idle.put(child)
        started = time.monotonic()
        with pytest.raises(ImageError, match="more than 1 seconds"):
            hasty.decode(saved(noise(8, 8)))
        assert time.monotonic() - started < 20
    finally:
        hasty.close()
