"""Decoding in processes of their own, for pictures of strangers: whatever a decoder is made to do costs one picture.

A child has a limit on its memory. It reads a picture from its standard input and writes the pixels to its standard
output. One that dies, or takes too long and is killed, is replaced when the next picture comes.

    to the child        shorter side (4 bytes), length (8 bytes), the file
    from the child      width and height (4 bytes each), length (8 bytes), RGB values; or 0, 0 and a message
"""

from __future__ import annotations

import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from PIL import Image

from recap.encoders.images import decode_content
from recap.encoders.inputs import label
from recap.errors import ImageError, RecapError
from recap.types import ImageLike, Vectors

_QUESTION, _ANSWER = struct.Struct(">IQ"), struct.Struct(">IIQ")


class Encodes(Protocol):
    """What encodes pictures: an image encoder, or a captioner."""

    @property
    def shorter_side(self) -> int:
        """The size pictures are scaled to; 0 where that is not known."""
        ...

    def encode_each(self, images: Iterable[ImageLike]) -> Iterator[Vectors | ImageError]:
        """Yield for each image its vector or the reason why there is none."""
        ...


class ApartDecoder:
    """Decodes pictures in child processes.

    Args:
        processes: how many pictures are decoded at once.
        max_pixels: how many pixels a picture may have.
        memory: bytes that a child may have.
        seconds: how long a picture may take.
    """

    def __init__(self, *, processes: int, max_pixels: int, memory: int, seconds: float) -> None:
        self._seconds = seconds
        self._limits = [str(memory), str(max_pixels)]
        self._processes = processes

    def start(self) -> None:
        """Start the children; they are ready while the first picture is on its way."""
        self._threads = ThreadPoolExecutor(self._processes, thread_name_prefix="recap-apart")
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue()
        for _ in range(self._processes):
            self._idle.put(_Child(self._limits))

    def encode_each(self, encoder: Encodes, contents: Iterable[bytes]) -> Iterator[Vectors | ImageError]:
        """Yield for each file its vector or the reason why there is none, as ``encoder.encode_each`` would."""
        side = encoder.shorter_side
        outcomes = list(self._threads.map(lambda content: self._outcome(content, side), contents))
        vectors = iter(encoder.encode_each([picture for picture in outcomes if isinstance(picture, Image.Image)]))
        for outcome in outcomes:
            yield outcome if isinstance(outcome, ImageError) else next(vectors)

    def decode(self, content: bytes, shorter_side: int | None = None) -> Image.Image:
        """Return a picture as ``images.decode`` does, or raise ``ImageError``."""
        child = self._idle.get()
        try:
            if child.dead:
                child = _Child(self._limits)
            return child.decode(content, shorter_side or 0, self._seconds)
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """End the children, once they are done."""
        self._threads.shutdown(wait=True)
        for _ in range(self._processes):
            self._idle.get().end()

    def _outcome(self, content: bytes, side: int) -> Image.Image | ImageError:
        try:
            return self.decode(content, side)
        except ImageError as error:
            return error


class _Child:
    """One process that decodes."""

    def __init__(self, limits: Sequence[str]) -> None:
        # the code that runs here must run there, too, wherever it was found
        places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OPENBLAS_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", "-m", "recap.encoders.apart", *limits]
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
        )

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    def decode(self, content: bytes, shorter_side: int, seconds: float) -> Image.Image:
        clock = threading.Timer(seconds, self._process.kill)
        clock.start()
        try:
            width, height, data = self._ask(content, shorter_side)
        except (OSError, EOFError) as error:
            late = not clock.is_alive()
            self.end()
            why = (
                f"decoding took more than {seconds:g} seconds" if late else "decoding took too much memory, or crashed"
            )
            raise ImageError(f"{label(content)}: {why}") from error
        finally:
            clock.cancel()
        if not width:
            raise ImageError(data.decode())
        return Image.frombytes("RGB", (width, height), data)

    def end(self) -> None:
        self._process.kill()
        # what was not written yet need not be
        with suppress(OSError):
            self._process.communicate()

    def _ask(self, content: bytes, shorter_side: int) -> tuple[int, int, bytes]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_QUESTION.pack(shorter_side, len(content)))
        self._process.stdin.write(content)
        self._process.stdin.flush()
        width, height, length = _ANSWER.unpack(_read_exactly(self._process.stdout, _ANSWER.size))
        return width, height, _read_exactly(self._process.stdout, length)


def _read_exactly(stream: IO[bytes], length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data


def _limit_memory(size: int) -> None:
    if sys.platform == "win32":
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard != resource.RLIM_INFINITY:
        size = min(size, hard)
    # where the system has no such limit (macOS), a crash still costs one picture only
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(content: bytes, shorter_side: int) -> tuple[int, int, bytes]:
    try:
        picture = decode_content(content, label(content), shorter_side or None)
        return picture.width, picture.height, picture.tobytes()
    except RecapError as error:
        return 0, 0, str(error).encode()
    except MemoryError:
        return 0, 0, f"{label(content)}: decoding took too much memory".encode()


def main() -> None:
    """Decode what comes on standard input until it ends."""
    memory, pixels = map(int, sys.argv[1:])
    os.environ["RECAP_MAX_PIXELS"] = str(pixels)
    Image.MAX_IMAGE_PIXELS = None
    _limit_memory(memory)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(_QUESTION.size)) == _QUESTION.size:
        shorter_side, length = _QUESTION.unpack(head)
        width, height, data = _answer(source.read(length), shorter_side)
        target.write(_ANSWER.pack(width, height, len(data)))
        target.write(data)
        target.flush()


if __name__ == "__main__":
    main()
