from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from recap.encoders.images import decode
from recap.encoders.inputs import is_picture, label, read, several
from recap.errors import ImageError, InputError

COLOURS = np.random.default_rng(0).integers(0, 256, (5, 6, 3), np.uint8)


def png(values: np.ndarray = COLOURS) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def pixels(source: Any) -> np.ndarray:
    return np.asarray(decode(source))


class Pipe(io.RawIOBase):
    """A file that can be read once, from front to back."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._content.readinto(buffer)


@pytest.mark.parametrize("kind", [bytearray, memoryview, io.BytesIO, Pipe])
def test_contents_and_files(kind: Any) -> None:
    assert np.array_equal(pixels(kind(png())), COLOURS)


def test_an_open_file_is_read_from_its_beginning_and_left_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    with path.open("rb") as file:
        file.seek(7)
        assert np.array_equal(pixels(file), COLOURS)
        assert np.array_equal(pixels(file), COLOURS)
        assert file.tell() == 7
        assert label(file) == str(path)
    written = io.BytesIO()
    Image.fromarray(COLOURS).save(written, "PNG")
    assert np.array_equal(pixels(written), COLOURS)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    with path.open("rb") as file:
        pass
    with pytest.raises(ImageError, match=r"a\.png.*closed"):
        read(file)
    with path.open(encoding="latin-1") as file, pytest.raises(ImageError, match=r'a\.png.*mode "rb"'):
        read(file)  # type: ignore[arg-type]
    with pytest.raises(ImageError, match='mode "rb"'):
        read(io.StringIO("text"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (COLOURS, COLOURS),
        (COLOURS.transpose(2, 0, 1), COLOURS),
        (COLOURS.astype(np.int64), COLOURS),
        (COLOURS / 255, COLOURS),
        ((COLOURS / 255).astype(np.float16), COLOURS),
        (COLOURS.astype(np.uint16) * 257, COLOURS),
        (COLOURS[..., 0], COLOURS[..., [0, 0, 0]]),
        (COLOURS[..., :1], COLOURS[..., [0, 0, 0]]),
        (COLOURS[None, ..., 0], COLOURS[..., [0, 0, 0]]),
        (COLOURS[..., 0] > 100, (COLOURS[..., [0, 0, 0]] > 100) * np.uint8(255)),
        (np.dstack([COLOURS, np.full((5, 6), 255, np.uint8)]), COLOURS),
        (np.dstack([COLOURS, np.zeros((5, 6), np.uint8)]), np.full_like(COLOURS, 255)),
        (COLOURS[:3], COLOURS[:3]),
        (COLOURS[::-1, ::2], COLOURS[::-1, ::2]),
    ],
)
def test_arrays(values: np.ndarray, expected: np.ndarray) -> None:
    assert np.array_equal(pixels(values), expected)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (COLOURS / 255 - 0.5, "0..1.*normalisation"),
        (COLOURS.astype(np.float32), "0..1.*divide"),
        (np.full((5, 6), np.nan), "0..1"),
        (COLOURS.astype(np.int32) * 2, "0..255"),
        (COLOURS.astype(np.int32) - 300, "0..255"),
        (np.zeros((5, 6, 2)), "5x6x2.*1, 3 or 4 colours"),
        (COLOURS[None], "batch of 1 pictures"),
        (COLOURS[0, 0], "HxW"),
        (COLOURS[:0], "no pixels"),
        (COLOURS.astype(str), "numbers"),
    ],
)
def test_arrays_that_are_no_pictures(values: np.ndarray, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        decode(values)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(COLOURS)
    first = tensor.permute(2, 0, 1)
    for given in (tensor, first, tensor / 255, (first / 255).requires_grad_()):
        assert np.array_equal(pixels(given), COLOURS)
    near = pixels((first / 255).to(torch.bfloat16)).astype(int) - COLOURS
    assert np.abs(near).max() <= 1
    # three rows or three colours: the colours of a tensor come first
    assert np.array_equal(pixels(first[:, :, :3]), COLOURS[:, :3])
    assert label(first) == "<array of 3x5x6>"


def test_torch_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor:
        ndim, shape = 3, (3, 5, 6)

        def detach(self) -> Tensor:
            return self

        cpu = detach

        def is_floating_point(self) -> bool:
            return False

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return COLOURS.transpose(2, 0, 1)

    monkeypatch.setitem(sys.modules, "torch", None)
    assert np.array_equal(pixels(Tensor()), COLOURS)


def test_an_address_that_became_a_path_is_explained() -> None:
    with pytest.raises(ImageError, match="give an address as text"):
        read(Path("https://example.org/a.jpg"))
    assert label("https://example.org/a.jpg?key=secret") == "https://example.org/a.jpg"


def test_one_is_told_from_several() -> None:
    for one in ("a.png", Path("a.png"), b"", bytearray(), io.BytesIO(), Image.new("L", (1, 1)), COLOURS, COLOURS[0]):
        assert is_picture(one)
        with pytest.raises(InputError, match="in a list"):
            several(one)
    for some in (["a.png"], (COLOURS,), COLOURS[None], iter([COLOURS]), np.array(["a.png", "b.png"])):
        assert not is_picture(some)
        assert len(list(several(some))) >= 1
    with pytest.raises(InputError, match="not int"):
        several(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"captioner\(images\)"):
        read(["a.png"])  # type: ignore[arg-type]
