from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap.encoders.base import DetailedImageEncoder, Encoder, ImageEncoder, TextEncoder
from recap.encoders.cache import VectorCache
from recap.encoders.network import CachedTextEncoder, SingleImageEncoder, cores, fingerprint_of
from recap.encoders.preprocess import Pixels, Preprocess
from recap.encoders.variants import JoinedImageEncoder
from recap.errors import ImageError, InputError, RecapError
from recap.types import Vectors

MakePicture = Callable[..., Image.Image]


class Colours(SingleImageEncoder):
    """The mean colours of a picture, counted as it goes."""

    def __init__(self, cache: VectorCache | None = None, name: str = "colours", size: int = 8, batch: int = 4) -> None:
        preprocessing = Preprocess(size=size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), resize="squash")
        identity = fingerprint_of(name, preprocessing.fingerprint())
        super().__init__(preprocessing, name=name, fingerprint=identity, dimension=3, batch_size=batch, cache=cache)
        self.batches: list[int] = []
        self.prepared = 0
        self.lock = threading.Lock()

    def preprocess(self, picture: Image.Image) -> Pixels:
        with self.lock:
            self.prepared += 1
        return super().preprocess(picture)

    def forward(self, batch: Pixels) -> Vectors:
        self.batches.append(len(batch))
        return batch.mean(axis=(2, 3))


def flat(colour: tuple[int, int, int]) -> Image.Image:
    return Image.new("RGB", (9, 5), colour)


def expected(colour: tuple[int, int, int]) -> np.ndarray:
    return np.array(colour) / np.linalg.norm(colour)


COLOURS = [(i * 20 + 1, 255 - i * 20, 40 + 5 * i) for i in range(11)]


class Shades(Colours):
    """The mean colours, and behind them the darkest value of each channel."""

    def __init__(self, cache: VectorCache | None = None, name: str = "shades") -> None:
        super().__init__(cache, name)
        self.details, self.sight = 3, "darkest"

    def forward(self, batch: Pixels) -> Vectors:
        return np.concatenate([super().forward(batch), batch.min(axis=(2, 3))], axis=1)


def test_details_come_behind_the_vector_on_request_only(tmp_path: Path) -> None:
    with VectorCache(tmp_path / "v.db") as cache:
        encoder = Shades(cache)
        whole = Encoder("shades", encoder, Letters())
        assert isinstance(encoder, DetailedImageEncoder)
        assert whole.sight == "darkest"
        pictures = [flat(colour) for colour in COLOURS]
        plain = Shades().encode_images(pictures)
        rows = np.stack(list(whole.encode_each(pictures, details=True)))
        assert np.array_equal(rows[:, :3], plain)
        assert np.allclose(rows[:, 3:], np.array(COLOURS) / 255, atol=1e-6)
        prepared = encoder.prepared
        assert np.array_equal(np.stack(list(whole.encode_each(pictures, details=True))), rows)
        assert np.array_equal(encoder.encode_images(pictures), plain)
        assert encoder.prepared == prepared


def test_details_of_joined_encoders_come_behind_all_vectors() -> None:
    joined = JoinedImageEncoder([Shades(), Colours()])
    assert (joined.dimension, joined.details, joined.sight) == (6, 3, "darkest")
    (row,) = joined.encode_each([flat(COLOURS[4])], details=True)
    assert np.allclose(row, [*np.tile(expected(COLOURS[4]) / np.sqrt(2), 2), *np.array(COLOURS[4]) / 255], atol=1e-6)
    assert np.array_equal(joined.encode_images([flat(COLOURS[4])])[0], row[:6])


def test_an_encoder_without_details_gives_none() -> None:
    plain = Encoder("colours", Colours(), Letters())
    assert plain.sight == ""
    (row,) = plain.encode_each([flat(COLOURS[0])], details=True)
    assert row.shape == (3,)


def test_rows_in_order_and_of_unit_length() -> None:
    encoder = Colours()
    rows = encoder.encode_images([flat(colour) for colour in COLOURS])
    assert rows.dtype == np.float32
    assert np.allclose(rows, [expected(colour) for colour in COLOURS], atol=1e-6)
    assert encoder.batches == [4, 4, 3]
    assert isinstance(encoder, ImageEncoder)


def test_no_images() -> None:
    assert Colours().encode_images([]).shape == (0, 3)
    assert list(Colours().encode_each([])) == []


def test_bad_images_are_reported_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    images = [flat(COLOURS[0]), tmp_path / "bad.jpg", flat(COLOURS[1]), b"", flat((0, 0, 0)), flat(COLOURS[2])]
    results = list(Colours().encode_each(images))
    assert [isinstance(result, ImageError) for result in results] == [False, True, False, True, True, False]
    assert "bad.jpg" in str(results[1])
    assert "without direction" in str(results[4])
    assert np.allclose(results[5], expected(COLOURS[2]), atol=1e-6)
    with pytest.raises(ImageError, match=r"bad\.jpg"):
        Colours().encode_images(images)


def test_a_single_path_is_not_taken_for_a_list() -> None:
    with pytest.raises(InputError, match="list"):
        Colours().encode_each("photo.jpg")


def test_what_is_no_image_at_all_stops_the_run() -> None:
    with pytest.raises(InputError, match="NoneType"):
        list(Colours().encode_each([None]))


def test_look_ahead_is_bounded_and_the_source_is_left_when_the_reader_stops() -> None:
    before, taken = set(threading.enumerate()), 0

    def endless() -> Iterator[Image.Image]:
        nonlocal taken
        while True:
            taken += 1
            yield flat(COLOURS[0])

    encoder = Colours(batch=4)
    results = encoder.encode_each(endless())
    for _ in range(20):
        next(results)
        assert taken <= 20 + 3 * 4
    results.close()
    for thread in {thread for thread in threading.enumerate() if thread.name.startswith("recap-decode")} - before:
        thread.join(20)
        assert not thread.is_alive()


def test_who_stops_does_not_wait_for_pictures_that_are_being_read() -> None:
    """The collector may end an abandoned iterator while a thread starts; to join threads there would last for ever."""
    released = threading.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            released.wait(60)
            return super().read(size)

    pictures = [Image.new("RGB", (9, 9)) for _ in range(4)]
    rows = Colours(batch=4).encode_each([*pictures, Slow(b"slow")])
    next(rows)
    stopping = threading.Thread(target=rows.close, daemon=True)  # type: ignore[attr-defined]
    stopping.start()
    stopping.join(20)
    stuck = stopping.is_alive()
    released.set()
    assert not stuck


def test_an_error_of_the_source_is_passed_on() -> None:
    def broken() -> Iterator[Image.Image]:
        yield flat(COLOURS[0])
        raise KeyError("source")

    with pytest.raises(KeyError, match="source"):
        list(Colours().encode_each(broken()))


def test_cached_vectors_are_not_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    flat(COLOURS[3]).save(path)
    images = [path, flat(COLOURS[4]), path.read_bytes()]
    with VectorCache(tmp_path / "v.db") as cache:
        first = Colours(cache).encode_images(images)
        again = Colours(cache)
        assert np.array_equal(again.encode_images([*images, flat(COLOURS[5])])[:3], first)
        assert again.batches == [1]
        assert again.prepared == 1
        other = Colours(cache, name="another")
        other.encode_images(images)
        assert sum(other.batches) == 3
        flat(COLOURS[6]).save(path)
        assert np.allclose(again.encode_images([path])[0], expected(COLOURS[6]), atol=1e-6)


def test_vectors_without_direction_are_not_cached(tmp_path: Path) -> None:
    with VectorCache(tmp_path / "v.db") as cache:
        assert isinstance(next(Colours(cache).encode_each([flat((0, 0, 0))])), ImageError)
        assert cache.count() == 0


def test_joined_encoders_are_unit_vectors_side_by_side(make_picture: MakePicture) -> None:
    images = [make_picture(seed) for seed in range(6)]
    parts = [Colours(name="one"), Colours(name="two", size=5, batch=3), Colours(name="three")]
    joined = JoinedImageEncoder(parts)
    rows = joined.encode_images(images)
    assert joined.name == "one+two+three"
    assert rows.shape == (6, joined.dimension) == (6, 9)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    alone = np.concatenate([part.encode_images(images) for part in parts], axis=1) / np.sqrt(3)
    assert np.allclose(rows, alone, atol=1e-6)
    assert joined.fingerprint != JoinedImageEncoder(parts[::-1]).fingerprint
    assert not {joined.fingerprint} & {part.fingerprint for part in parts}


def test_joined_encoders_share_decoding_and_preprocessing(
    make_picture: MakePicture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = Preprocess.__call__
    monkeypatch.setattr(Preprocess, "__call__", lambda self, picture: (calls.append(self.size), real(self, picture))[1])
    parts = [Colours(name="one"), Colours(name="two"), Colours(name="three", size=5)]
    JoinedImageEncoder(parts).encode_images([make_picture()])
    assert sorted(calls) == [5, 8]


class Letters(CachedTextEncoder):
    """How often each of three letters occurs; texts are cut at ten letters."""

    def __init__(self, cache: VectorCache | None = None) -> None:
        super().__init__(name="letters", fingerprint=fingerprint_of("letters"), dimension=3, cache=cache)
        self.seen: list[str] = []

    def tokenize(self, texts: Sequence[str]) -> tuple[Sequence[str], int]:
        return [text[:10] for text in texts], sum(len(text) > 10 for text in texts)

    def forward(self, tokens: Sequence[str]) -> Vectors:
        self.seen += tokens
        return np.array([[text.count(letter) for letter in "abc"] for text in tokens], np.float32)


def test_texts_in_order_cut_and_counted(tmp_path: Path) -> None:
    with VectorCache(tmp_path / "v.db") as cache:
        encoder = Letters(cache)
        rows = encoder.encode_texts(["ab", "c", "aaab", "c" * 12])
        assert np.allclose(rows[0], np.array([1, 1, 0]) / np.sqrt(2))
        assert np.allclose(rows[2], np.array([3, 1, 0]) / np.sqrt(10))
        assert encoder.truncated == 1
        assert isinstance(encoder, TextEncoder)
        again = Letters(cache)
        assert np.array_equal(again.encode_texts(["c" * 12, "ab", "b"])[1], rows[0])
        assert again.seen == ["b"]
        assert again.truncated == 1


def test_texts_in_several_chunks() -> None:
    texts = ["a" * (i % 4) + "b" * (i % 3) + "c" for i in range(5000)]
    rows = Letters().encode_texts(texts)
    counts = np.array([[i % 4, i % 3, 1] for i in range(5000)])
    assert np.allclose(rows, counts / np.linalg.norm(counts, axis=1, keepdims=True), atol=1e-6)
    assert Letters().encode_texts([]).shape == (0, 3)


@pytest.mark.parametrize("wrong", [[None], [5], ["\ud800"]])
def test_what_is_no_text(wrong: list[str]) -> None:
    with pytest.raises(InputError, match="not a text"):
        Letters().encode_texts(wrong)


def test_a_single_text_is_not_taken_for_a_list() -> None:
    with pytest.raises(InputError, match="list"):
        Letters().encode_texts("abc")


def test_a_text_without_direction_is_an_error_and_not_cached(tmp_path: Path) -> None:
    with VectorCache(tmp_path / "v.db") as cache:
        with pytest.raises(RecapError, match="xyz"):
            Letters(cache).encode_texts(["a", "xyz"])
        assert cache.count() == 0


@pytest.mark.parametrize(
    ("said", "used"), [(None, 8), ("3", 3), ("1", 1), (" 2 ", 2), ("4,2", 4), ("99", 8), ("", 8), ("0", 8), ("many", 8)]
)
def test_cores_are_all_or_what_the_environment_says(monkeypatch: pytest.MonkeyPatch, said: str | None, used: int):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert cores() == used
