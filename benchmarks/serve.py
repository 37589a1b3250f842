"""Load on ``recap serve``: batching on against batching off, and an end in the middle.

    python benchmarks/serve.py FOLDER_OF_PICTURES [--pack builtin] [--clients 32] [--seconds 60] [--lm NAME] [--soak]

The clients are threads of this process; the server is another. Each sends pictures one after the other, none twice
before all were sent. Prints the captions a second with and without batching and their ratio, the 95th percentile of
the latency, the server's memory, and what became of every request when SIGTERM came under full load. With ``--soak``
one server stands one load; the exit code is 1 if an answer was an error of the server, or if the memory of server and
decoders, once half the time is over, was more than 5 % above what it had been.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

BOUNDARY = "recap-benchmark"
HEADERS = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
LOST = "lost"
"""A request that was sent and got no answer."""
NOT_TAKEN = "not taken"
"""A request that found nobody to connect to."""


@dataclass
class Server:
    """A running ``recap serve``."""

    process: subprocess.Popen[str]
    host: str
    port: int
    last_line: str = ""

    @property
    def memory(self) -> float:
        """Resident memory of the server and its decoders in MB, as Linux tells it."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        children = [number for file in tasks.glob("*/children") for number in _read(file)]
        pages = sum(int(fields[1]) for pid in (self.process.pid, *children) if (fields := _read(f"/proc/{pid}/statm")))
        return pages * resource.getpagesize() / 1e6

    def stop(self) -> str:
        """End it with SIGTERM, and return its last words."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> str:
        """Wait for its end, and return its last words."""
        self.process.wait(120)
        self.reader.join(10)
        if self.process.returncode != 0:
            raise SystemExit(f"the server ended with {self.process.returncode}: {self.last_line}")
        return self.last_line

    reader: threading.Thread = field(default_factory=threading.Thread)


def _read(file: str | Path) -> list[str]:
    """Return the fields of a file about a process, none when it has ended."""
    try:
        return Path(file).read_text().split()
    except OSError:
        return []


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    """Start ``recap serve`` on a free port."""
    command = [sys.executable, "-m", "recap.cli.main", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"serving .* on http://([\d.]+):(\d+)", line):
                break
            print(line, end="", file=sys.stderr)
        else:
            raise SystemExit("the server did not start")
        server = Server(process, found[1], int(found[2]))
        server.reader = threading.Thread(target=_drain, args=(server,), daemon=True)
        server.reader.start()
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _drain(server: Server) -> None:
    assert server.process.stderr is not None
    for line in server.process.stderr:
        server.last_line = line.strip()


@dataclass
class Load:
    """What the clients have seen."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)


def body(picture: bytes) -> bytes:
    """Return a form with one picture."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="picture.jpg"\r\n\r\n'
    return head.encode() + picture + f"\r\n--{BOUNDARY}--\r\n".encode()


def client(server: Server, bodies: Iterator[bytes], load: Load) -> None:
    """Send pictures, one after the other, until told to stop or until the server does not answer."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    while not load.stopped.is_set():
        with load.lock:
            content = next(bodies)
        started = time.perf_counter()
        outcome, pause = send(connection, content)
        with load.lock:
            load.outcomes[outcome] += 1
            load.seconds.append(time.perf_counter() - started)
        if outcome in (LOST, NOT_TAKEN):
            return
        if pause:
            connection.close()  # meanwhile the server would
        time.sleep(pause)


def send(connection: http.client.HTTPConnection, content: bytes) -> tuple[str, float]:
    """Send one picture; return what became of it, and how long to wait before the next."""
    try:
        if connection.sock is None:
            connection.connect()
    except OSError:
        return NOT_TAKEN, 0
    try:
        connection.request("POST", "/v1/caption", content, HEADERS)
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return LOST, 0
    if answer.status == 200 and not json.loads(text)["results"][0]["result"]:
        return "no caption", 0
    return str(answer.status), float(answer.headers.get("Retry-After", 0))


def drive(server: Server, bodies: Sequence[bytes], clients: int, seconds: float, end: bool) -> tuple[Load, list[float]]:
    """Let clients send for so many seconds; ``end`` sends SIGTERM then, while they go on."""
    load, endless = Load(), itertools.cycle(bodies)
    threads = [threading.Thread(target=client, args=(server, endless, load)) for _ in range(clients)]
    memory = []
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        memory.append(server.memory)
        time.sleep(min(1.0, seconds / 10))
    if end:
        server.process.send_signal(signal.SIGTERM)
    else:
        load.stopped.set()
    for thread in threads:
        thread.join()
    return load, memory


def throughput(
    options: Sequence[str], bodies: Sequence[bytes], clients: int, seconds: float, *, soak: bool = False
) -> float:
    """Print what a server does under load, and return its captions a second; ``soak`` ends all if it is not well."""
    with serving(*options) as server:
        drive(server, bodies, clients, min(5.0, seconds / 4), end=False)  # warm
        started = time.perf_counter()
        load, memory = drive(server, bodies, clients, seconds, end=False)
        rate = load.outcomes["200"] / (time.perf_counter() - started)
        said = server.stop()
    latency = sorted(load.seconds)[int(0.95 * len(load.seconds))]
    half = len(memory) // 2
    print(
        f"{' '.join(options)}: {rate:.1f} captions/s, p95 {latency:.2f} s, {dict(load.outcomes)}, memory "
        f"{max(memory[:half]):.0f} MB in the first half, {max(memory[half:]):.0f} MB in the second; {said}"
    )
    wrong = [outcome for outcome in load.outcomes if outcome not in ("200", "503")]
    if soak and (wrong or max(memory[half:]) > 1.05 * max(memory[:half])):
        raise SystemExit("not good enough")
    return rate


def end_under_load(options: Sequence[str], bodies: Sequence[bytes], clients: int, seconds: float) -> None:
    """Print what became of the requests when the server was told to end."""
    with serving(*options) as server:
        load, _ = drive(server, bodies, clients, seconds, end=True)
        said = server.wait()
    answered = sum(count for outcome, count in load.outcomes.items() if outcome not in (LOST, NOT_TAKEN))
    # a request on an idle connection may cross the server's closing of it: sent, but never taken
    print(f"SIGTERM: the clients have {answered} answers, {dict(load.outcomes)}; {said}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--pack", default="builtin")
    parser.add_argument("--lm", default="none")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--soak", action="store_true")
    parser.add_argument("--count", type=int, default=1000, help="So many pictures are sent, again and again.")
    given = parser.parse_args()
    files = sorted(path for path in given.pictures.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    bodies = [body(path.read_bytes()) for path in files[: given.count]]
    options = ["--pack", given.pack, "--lm", given.lm]
    if given.soak:
        throughput(options, bodies, given.clients, given.seconds, soak=True)
        return
    alone = throughput([*options, "--max-batch", "1"], bodies, given.clients, given.seconds)
    together = throughput(options, bodies, given.clients, given.seconds)
    print(f"batching: {together / alone:.2f} times the captions a second")
    end_under_load(options, bodies, given.clients, given.seconds / 4)


if __name__ == "__main__":
    main()
