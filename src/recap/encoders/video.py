"""Frames of a video, to caption it by.

The paper takes four frames of each clip of MSR-VTT; ``even`` takes the middle ones of as many equal parts. ``scene``
cuts the clip where its picture changes most, and takes the middle of each scene. Frames are found by seeking: a clip is
never held in memory, and one that cannot be seeked through in a bounded number of frames is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from recap.encoders.images import max_pixels
from recap.errors import ImageError, InputError, MissingExtraError, check_name

if TYPE_CHECKING:
    from PIL.Image import Image

VIDEO_SUFFIXES = frozenset(
    {".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".webm", ".wmv"}
)

FRAMES = 4
"""How many frames the paper takes."""

MAX_DECODED = 20_000
"""Largest number of frames decoded for one clip, which bounds the time that a broken or endless one takes."""

_SIDE = 720  # encoders look at far less, and a frame of 8K takes 100 MB
_LOOKS = 12  # thumbnails for each wanted frame, to find the scenes
_THUMBNAIL = 16
# playlists name other files and addresses: only containers that hold their pictures themselves are opened
_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,m4v,flv,asf,ogg,h264,hevc,ivf,dv,gif"

Choice = Literal["even", "scene"]


def is_video(path: str | Path) -> bool:
    """Tell whether a file is a video, by its name."""
    return Path(path).suffix.lower() in VIDEO_SUFFIXES


def read_frames(path: str | Path, count: int = FRAMES, choose: Choice = "even") -> list[Image]:
    """Return frames of a video in their order, upright and in RGB; fewer than ``count`` when it has no more.

    Args:
        path: the video's file.
        count: how many frames.
        choose: ``even`` for frames at equal distances, ``scene`` for one of each of the ``count`` clearest scenes.
    """
    if count < 1:
        raise InputError(f"count must be at least 1, not {count}")
    check_name("choice of frames", choose, get_args(Choice))
    with _open(Path(path)) as clip:
        times = clip.middles(count)
        if choose == "scene":
            times = _scene_middles(clip, count)
        frames = [clip.picture(frame) for frame in clip.frames_at(times)]
    if not frames:
        raise ImageError(f"{path}: no frame of this video can be decoded")
    return frames


def _scene_middles(clip: _Clip, count: int) -> list[float]:
    """Return the times of the middle frames of scenes, which end where two neighbouring looks differ most."""
    looks = [(float(frame.time), _thumbnail(frame)) for frame in clip.frames_at(clip.middles(count * _LOOKS))]
    times, thumbnails = [time for time, _ in looks], [thumbnail for _, thumbnail in looks]
    return [times[(start + end) // 2] for start, end in scenes(thumbnails, count)]


def scenes(thumbnails: Sequence[npt.NDArray[np.float32]], count: int) -> list[tuple[int, int]]:
    """Return first and last place of at most ``count`` scenes, cut where neighbours differ most."""
    changes = [float(np.abs(after - before).mean()) for before, after in pairwise(thumbnails)]
    largest = sorted(range(len(changes)), key=lambda place: (-changes[place], place))[: count - 1]
    starts = [0, *sorted(place + 1 for place in largest)]
    ends = [*(start - 1 for start in starts[1:]), len(thumbnails) - 1]
    return list(zip(starts, ends, strict=True)) if thumbnails else []


def _thumbnail(frame: Any) -> npt.NDArray[np.float32]:
    small = frame.reformat(width=_THUMBNAIL, height=_THUMBNAIL, format="rgb24").to_ndarray()
    return np.asarray(small, dtype=np.float32)


@contextmanager
def _open(path: Path) -> Iterator[_Clip]:
    """Open a clip; whatever is wrong with it becomes an ``ImageError`` that names it."""
    try:
        import av
    except ImportError as error:
        raise MissingExtraError("reading videos", "video") from error
    # a pipe has no end, and a path that FFmpeg would take for an address is no file
    if not path.is_file():
        raise ImageError(f"{path}: {'not a file' if path.exists() else 'there is no such file'}")
    options = {"protocol_whitelist": "file", "format_whitelist": _CONTAINERS}
    try:
        with av.open(f"file:{path}", options=options, metadata_errors="replace") as container:
            if not container.streams.video:
                raise ImageError(f"{path}: there is no video in this file")
            yield _Clip(path, container)
    except av.FFmpegError as error:
        raise ImageError(f"{path}: not a video that can be read ({error.strerror})") from error
    except OSError as error:
        raise ImageError(f"{path}: cannot be read ({error})") from error


class _Clip:
    """An open video, of which frames are decoded on demand."""

    def __init__(self, path: Path, container: Any) -> None:
        self._path, self._container = path, container
        self._stream = container.streams.video[0]
        self._decoded = 0
        if self._stream.codec_context is None:
            raise ImageError(f"{path}: the video is of a kind that cannot be decoded")
        self._check_size(self._stream.codec_context)

    def middles(self, count: int) -> list[float]:
        """Return the times in the middle of ``count`` equal parts."""
        start, length = self._span()
        return [start + length * (part + 0.5) / count for part in range(count)]

    def frames_at(self, times: Sequence[float]) -> Iterator[Any]:
        """Yield for each time the frame that is shown then, each frame once."""
        last = None
        for time in times:
            frame = self._frame_at(time)
            if frame is not None and frame.pts != last:
                last = frame.pts
                yield frame

    def picture(self, frame: Any) -> Image:
        """Return a frame as a picture, upright, its shorter side not above 720 pixels."""
        scale = min(1.0, _SIDE / min(frame.width, frame.height))
        size = {"width": max(1, round(frame.width * scale)), "height": max(1, round(frame.height * scale))}
        image: Image = frame.to_image(**size)
        return image.rotate(frame.rotation, expand=True) if frame.rotation else image

    def _frame_at(self, time: float) -> Any:
        """Return the last frame that begins at ``time`` or before, or else the first there is."""
        base = self._stream.time_base
        self._container.seek(max(0, int(time / base)), stream=self._stream, backward=True)
        shown = None
        for frame in self._frames():
            if frame.time is not None and frame.time > time and shown is not None:
                break
            shown = frame
            if frame.time is not None and frame.time >= time:
                break
        return shown

    def _frames(self) -> Iterator[Any]:
        """Yield frames from the present place on; broken ones are passed over."""
        import av

        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets)
                for frame in packet.decode():
                    self._count()
                    self._check_size(frame)
                    yield frame
            except StopIteration:
                return
            except av.InvalidDataError:
                self._count()

    def _count(self) -> None:
        self._decoded += 1
        if self._decoded > MAX_DECODED:
            raise ImageError(
                f"{self._path}: more than {MAX_DECODED} frames had to be decoded to reach the wanted ones; "
                "write the video anew with more key frames"
            )

    def _check_size(self, picture: Any) -> None:
        if picture.width * picture.height > max_pixels():
            size = f"{picture.width}x{picture.height}"
            raise ImageError(f"{self._path}: {size} pixels are over the limit of {max_pixels()}")

    def _span(self) -> tuple[float, float]:
        """Return start and length in seconds; a clip that does not say is looked through once."""
        stream, container = self._stream, self._container
        start = float((stream.start_time or 0) * stream.time_base)
        if stream.duration:
            return start, float(stream.duration * stream.time_base)
        if container.duration:
            return start, container.duration / 1e6
        last = start
        for frame in self._frames():
            last = float(frame.time) if frame.time is not None else last
        return start, max(last - start, 0.0)
