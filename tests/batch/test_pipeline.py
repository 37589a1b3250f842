from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

import pytest

from recap.batch.pipeline import DEPTH, BrokenChannelError, Channel, Pipeline, Waits, file_facts
from recap.captioner import ReCap
from recap.errors import ImageError, InputError
from recap.types import Caption


def test_everything_arrives_in_order_and_no_more_than_depth_waits():
    channel: Channel[int] = Channel(3, Waits())
    put = 0
    most = 0

    def produce() -> None:
        nonlocal put
        for number in range(200):
            channel.put(number)
            put += 1
        channel.close()

    thread = threading.Thread(target=produce)
    thread.start()
    received = []
    for number in channel:
        most = max(most, put - len(received))
        received.append(number)
    thread.join()
    assert received == list(range(200))
    assert most <= 4  # three wait, and one may just have been taken


def test_breaking_off_ends_both_sides():
    channel: Channel[int] = Channel(1, Waits())
    channel.put(1)
    outcome: list[str] = []

    def produce() -> None:
        try:
            channel.put(2)
        except BrokenChannelError:
            outcome.append("ended")

    thread = threading.Thread(target=produce)
    thread.start()
    channel.break_off()
    thread.join()
    assert outcome == ["ended"]
    with pytest.raises(BrokenChannelError):
        next(iter(channel))


def test_waiting_is_counted_for_the_thread_that_waits():
    waits = Waits()
    channel: Channel[int] = Channel(1, waits)
    thread = threading.Thread(target=lambda: list(channel), name="reader")
    thread.start()
    time.sleep(0.05)  # nothing is there yet
    channel.put(1)
    channel.close()
    thread.join()
    assert waits.keys() == {"reader"}
    assert waits["reader"] > 0


@pytest.fixture
def many(pairs_folder: Path, new_pictures: dict[str, Path]) -> list[str]:
    return [str(path) for path in (*sorted(pairs_folder.glob("*.png")), *new_pictures.values())] * 8


@pytest.mark.parametrize("workers", [1, 3])
def test_captions_are_those_of_one_picture_at_a_time(captioner: ReCap, many: list[str], workers: int):
    expected = {path: captioner.caption(path) for path in set(many)}
    items = list(Pipeline(captioner, workers=workers).run(many))
    assert sorted(item.path for item in items) == sorted(many)
    for item in items:
        assert item.result == expected[item.path]
        assert item.file is not None
        assert item.file.sha256 == hashlib.sha256(Path(item.path).read_bytes()).hexdigest()


def test_files_that_cannot_be_read_are_explained(captioner: ReCap, many: list[str], tmp_path: Path):
    (tmp_path / "empty.png").touch()
    bad = [str(tmp_path / "empty.png"), str(tmp_path / "absent.png"), str(tmp_path), "nul\0l"]
    results = {item.path: item.result for item in Pipeline(captioner).run([bad[0], many[0], *bad[1:]])}
    assert isinstance(results.pop(many[0]), Caption)
    assert {path: str(error).rpartition(": ")[2] for path, error in results.items() if path != "nul\0l"} == {
        bad[0]: "the file is empty",
        bad[1]: "there is no such file",
        bad[2]: "a folder, not a file",
    }
    assert all(isinstance(error, ImageError) for error in results.values())


def test_what_is_known_goes_past_the_encoder(captioner: ReCap, many: list[str]):
    known = file_facts(many[0])
    assert known is not None
    places = {known.sha256: 17}
    items = list(Pipeline(captioner, known=places.get).run(many))
    assert {item.known for item in items if item.path == many[0]} == {17}
    assert all((item.result is None) == (item.path == many[0]) for item in items)


def test_nothing_piles_up_when_the_reader_is_slow(captioner: ReCap, many: list[str]):
    pulled = 0

    def counted():
        nonlocal pulled
        for path in many * 4:
            pulled += 1
            yield path

    items = Pipeline(captioner, workers=1).run(counted())
    for _ in range(5):
        next(items)
    threading.Event().wait(0.3)
    # two queues, a batch in each stage, the look-ahead of the encoder and of the readers
    assert pulled <= 2 * DEPTH + 32 + 4 * captioner.encoder.image.batch_size + 10
    before = threading.active_count()
    items.close()
    assert threading.active_count() < before


def test_a_failing_stage_ends_the_run(captioner: ReCap, many: list[str]):
    broken = captioner.configured(candidates="lm")
    with pytest.raises(InputError, match="needs a language model"):
        list(Pipeline(broken).run(many))

    def known(sha256: str) -> int | None:
        raise OSError("the disk is on fire")

    with pytest.raises(OSError, match="on fire"):
        list(Pipeline(captioner, known=known).run(many))


def test_other_kinds_of_files_have_their_own_captioner(captioner: ReCap, many: list[str], tmp_path: Path):
    caption = captioner.caption(many[0])
    for name in ("good.MOV", "bad.mov"):
        (tmp_path / name).write_text(name)

    def film(path: Path) -> Caption:
        if path.name == "bad.mov":
            raise ImageError(f"{path}: no frames")
        return caption

    names = [str(tmp_path / name) for name in ("good.MOV", "bad.mov", "absent.mov")]
    items = {item.path: item.result for item in Pipeline(captioner, others={".mov": film}).run([*names, many[1]])}
    assert items[names[0]] == caption
    assert "no frames" in str(items[names[1]])
    assert "no such file" in str(items[names[2]])
    assert items[many[1]] == captioner.caption(many[1])


def test_the_time_of_each_stage(captioner: ReCap, many: list[str]):
    pipeline = Pipeline(captioner)
    list(pipeline.run(many))
    assert set(pipeline.busy) == {"reading", "encoding", "captioning", "writing"}
    assert pipeline.busy["encoding"] > 0
    assert pipeline.busy["captioning"] > 0
