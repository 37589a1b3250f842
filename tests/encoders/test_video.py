import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import recap.encoders.video
from recap import ReCap
from recap.encoders.video import is_video, read_frames, scenes
from recap.errors import ImageError, InputError
from recap.types import Pair

av = pytest.importorskip("av")

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "yellow": (230, 230, 20)}


def write(path: Path, pictures: Sequence[np.ndarray], *, rate: int = 10, keys: int = 12, codec: str = "mpeg4") -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt, stream.gop_size, stream.bit_rate = "yuv420p", keys, 4_000_000
        stream.codec_context.time_base = Fraction(1, rate)
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def plain(rgb: tuple[int, int, int], size: tuple[int, int] = (48, 64)) -> np.ndarray:
    return np.full((*size, 3), rgb, dtype=np.uint8)


def grey(level: int) -> np.ndarray:
    return plain((level, level, level))


def levels(frames: Sequence[Image.Image]) -> list[float]:
    return [float(np.asarray(frame).mean()) for frame in frames]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi", ".mov"])
@pytest.mark.parametrize("keys", [1, 12, 1000])
def test_frames_are_in_the_middle_of_equal_parts(tmp_path: Path, suffix: str, keys: int):
    path = write(tmp_path / f"clip{suffix}", [grey(4 * number) for number in range(60)], keys=keys)
    frames = read_frames(path)
    # six seconds at ten frames: the frames shown at 0.75, 2.25, 3.75 and 5.25 s
    assert levels(frames) == pytest.approx([4 * n for n in (7, 22, 37, 52)], abs=3)
    assert all(frame.mode == "RGB" and frame.size == (64, 48) for frame in frames)
    assert levels(read_frames(path, count=1)) == pytest.approx([120], abs=3)


def test_a_short_clip_gives_the_frames_it_has(tmp_path: Path):
    assert len(read_frames(write(tmp_path / "one.mp4", [grey(9)]))) == 1
    assert levels(read_frames(write(tmp_path / "two.mp4", [grey(9), grey(200)]), 8)) == pytest.approx([9, 200], abs=3)


def test_scenes_are_found_whatever_their_length(tmp_path: Path):
    lengths = {"red": 60, "green": 8, "blue": 9, "yellow": 13}
    clip = [plain(COLOURS[name]) for name, length in lengths.items() for _ in range(length)]
    path = write(tmp_path / "clip.mp4", clip)
    found = [np.asarray(frame).mean((0, 1)) for frame in read_frames(path, choose="scene")]
    np.testing.assert_allclose(found, [COLOURS[name] for name in lengths], atol=12)
    evenly = [np.asarray(frame).mean((0, 1)) for frame in read_frames(path)]
    assert np.abs(evenly[1] - COLOURS["red"]).max() < 12


def test_scenes_cover_everything_once():
    rows = [np.full((2, 2, 3), value, dtype=np.float32) for value in (0, 1, 50, 51, 90)]
    assert scenes(rows, 3) == [(0, 1), (2, 3), (4, 4)]
    assert scenes(rows, 1) == [(0, 4)]
    assert scenes(rows, 9) == [(place, place) for place in range(5)]
    assert scenes([], 3) == []


def test_a_clip_filmed_upright_is_upright(tmp_path: Path):
    picture = plain((0, 0, 0))
    picture[:, :16] = 255  # white at the left
    path = write(tmp_path / "clip.mp4", [picture] * 5)
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 44
    one = 1 << 16
    struct.pack_into(">9i", data, matrix, 0, one, 0, -one, 0, 0, 48 * one, 0, 1 << 30)  # a quarter turn clockwise
    path.write_bytes(data)
    frame = np.asarray(read_frames(path, 1)[0].convert("L"))
    assert frame.shape == (64, 48)
    assert frame[:12].mean() > 200
    assert frame[20:].mean() < 50


def test_large_frames_are_scaled_down(tmp_path: Path):
    path = write(tmp_path / "clip.mp4", [plain((9, 9, 9), (1088, 1920))])
    assert read_frames(path)[0].size == (1271, 720)


@pytest.mark.parametrize("content", [b"", b"not a video", b"\0" * 5000, b"#EXTM3U\n#EXTINF:1,\nother.mp4\n"])
def test_what_is_no_video_is_an_error_that_names_it(tmp_path: Path, content: bytes):
    path = tmp_path / "bad.mp4"
    path.write_bytes(content)
    write(tmp_path / "other.mp4", [grey(9)] * 3)
    with pytest.raises(ImageError, match=r"bad\.mp4"):
        read_frames(path)


def test_missing_files_folders_and_addresses_are_errors(tmp_path: Path):
    for path in (tmp_path, tmp_path / "gone.mp4", "https://example.org/clip.mp4"):
        with pytest.raises(ImageError):
            read_frames(path)


def test_truncated_and_damaged_clips_give_frames_or_an_error(tmp_path: Path):
    whole = write(tmp_path / "clip.mkv", [grey(4 * n) for n in range(60)]).read_bytes()
    random = np.random.default_rng(0)
    outcomes = set()
    for number in range(12):
        data = bytearray(whole[: random.integers(1, len(whole))] if number % 2 else whole)
        for place in random.integers(200, max(len(data), 201), 20 if number % 2 == 0 else 0):
            data[min(place, len(data) - 1)] ^= int(random.integers(1, 256))
        path = tmp_path / f"bad{number}.mkv"
        path.write_bytes(data)
        try:
            frames = read_frames(path)
        except ImageError:
            outcomes.add("error")
        else:
            outcomes.add("frames")
            assert 1 <= len(frames) <= 4
    assert outcomes == {"error", "frames"}


def test_a_clip_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "clip.mp4", [grey(n) for n in range(60)])
    monkeypatch.setattr(recap.encoders.video, "MAX_DECODED", 3)
    with pytest.raises(ImageError, match="key frames"):
        read_frames(path)


def test_sound_alone_is_no_video(tmp_path: Path):
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), dtype=np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(ImageError, match="no video"):
        read_frames(path)


def test_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "clip.mp4", [grey(1)])
    monkeypatch.setenv("RECAP_MAX_PIXELS", "1000")
    with pytest.raises(ImageError, match="64x48"):
        read_frames(path)


def test_arguments():
    assert is_video("a/CLIP.MP4")
    assert is_video(Path("x.webm"))
    assert not is_video("x.gif")
    for wrong in ({"count": 0}, {"choose": "best"}):
        with pytest.raises(InputError):
            read_frames("x.mp4", **wrong)


@pytest.fixture(scope="module")
def captioner(pairs: list[Pair], encoder_folder: Path) -> ReCap:
    return ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}", language_model=None, method="ols")


def test_equal_frames_are_captioned_like_the_picture(captioner: ReCap, new_pictures: dict[str, Path]):
    one, clip = captioner.caption(new_pictures["red"]), captioner.caption_frames([new_pictures["red"]] * 3)
    assert clip.text == one.text
    assert clip.score == pytest.approx(one.score, abs=1e-5)
    assert [item.text for item in clip.evidence] == [item.text for item in one.evidence]


def test_evidence_is_merged_by_the_best_frame_and_candidates_are_judged_by_the_mean(
    captioner: ReCap, new_pictures: dict[str, Path], pairs: list[Pair]
):
    images = [new_pictures["red"], new_pictures["red"], new_pictures["blue"]]
    clip = captioner.configured(selection="cosine", k=20).caption_frames(images)
    frames = captioner.alignment.transform(captioner.encoder.encode_images(images))
    mean = frames.mean(0) / np.linalg.norm(frames.mean(0))
    texts = {caption for pair in pairs for caption in pair.captions}
    vectors = dict(
        zip(texts, captioner.alignment.transform_texts(captioner.encoder.encode_texts(list(texts))), strict=True)
    )
    assert {item.text for item in clip.evidence} > {"a red wall", "a blue wall"}
    for item in clip.evidence:
        assert item.similarity == pytest.approx(float((frames @ vectors[item.text]).max()), abs=1e-5)
    for item in clip.candidates:
        assert item.cosine == pytest.approx(float(mean @ vectors[item.text]), abs=1e-5)
    assert clip.score == max(item.cosine for item in clip.candidates)
    assert [i.similarity for i in clip.evidence] == sorted((i.similarity for i in clip.evidence), reverse=True)


def test_a_written_clip_is_captioned(captioner: ReCap, tmp_path: Path):
    path = write(tmp_path / "clip.mp4", [plain(COLOURS["green"])] * 20)
    assert "green" in captioner.caption_frames(read_frames(path)).text
    with pytest.raises(InputError, match="frame"):
        captioner.caption_frames([])
