from __future__ import annotations

import threading

import pytest

from recap.batch.channel import BrokenChannelError, Channel, Waits


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
    channel.put(1)
    channel.put(2)
    channel.close()
    thread.join()
    assert waits.of("reader") >= 0
    assert waits.of("nobody") == 0
