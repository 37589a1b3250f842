"""Caption on a Ray cluster of two hosts, cut the network of one in the middle, and compare with one machine.

    sudo python benchmarks/two_hosts.py PICTURES [--pictures 1000] [--pack builtin] [--lm writer]

The hosts are network namespaces of this machine with addresses of their own, a cable between them (veth), and a
``/tmp/ray`` each; both have one core. ``recap caption`` runs once without a cluster, once with ``--ray=ray://HOST:PORT``
for a tenth of the pictures, and once with ``--ray=HOST:PORT``, when the cable is cut as soon as a third of the captions
is there. The exit code is 1 if a caption is missing or differs, or if all was done before the cut; without root or
``ip`` the script says so, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from recap.datasets import find_images

ADDRESSES = ("10.201.77.1", "10.201.77.2")
PORT, CLIENT_PORT = 6379, 10001
MEMORY = 200_000_000
"""Bytes of the object store of a host."""
OPENED = 300
"""Seconds in which both hosts have to be there."""


class Hosts:
    """Two hosts with a cable between them; the first is the head of the cluster."""

    def __init__(self, work: Path) -> None:
        self._names = [f"recap{os.getpid()}{which}" for which in "ab"]
        self._work = work
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in self._names:
            _ip("netns", "add", name)
        ends = [f"{name}0"[-15:] for name in self._names]
        _ip("link", "add", ends[0], "netns", self._names[0], "type", "veth", "peer", ends[1], "netns", self._names[1])
        for name, end, address in zip(self._names, ends, ADDRESSES, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        self._cable = ends[1]

    def start(self) -> None:
        """Start the cluster, and wait until both hosts are in it."""
        here = ["--include-dashboard=false", f"--port={PORT}", f"--ray-client-server-port={CLIENT_PORT}"]
        self._start(0, "--head", *here)
        end = time.monotonic() + OPENED
        while self._count() < 1 and time.monotonic() < end:
            time.sleep(1)
        self._start(1, f"--address={ADDRESSES[0]}:{PORT}")
        while self._count() < 2:
            if time.monotonic() > end:
                raise RuntimeError(f"the cluster did not start; see {self._work}")
            time.sleep(1)

    def _start(self, number: int, *options: str) -> None:
        folder = self._work / f"host{number}"
        folder.mkdir()
        own = [f"--node-ip-address={ADDRESSES[number]}", "--num-cpus=1", f"--object-store-memory={MEMORY}", "--block"]
        ray = " ".join(["exec", sys.executable, "-m", "ray.scripts.scripts", "start", *own, *options])
        with (folder / "log").open("wb") as log:
            command = self.on(number, "sh", "-c", ray)
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

    def on(self, number: int, *command: str) -> list[str]:
        """Return a command as it is run on a host: in its network, and with its folder of Ray."""
        folder = self._work / f"host{number}"
        inside = f'mount --bind {folder} /tmp/ray && exec "$@"'
        return ["ip", "netns", "exec", self._names[number], "unshare", "-m", "sh", "-c", inside, "host", *command]

    def _count(self) -> int:
        look = f"import ray; ray.init('{ADDRESSES[0]}:{PORT}', log_to_driver=False, logging_level='ERROR'); "
        look += "print(sum(node['Alive'] for node in ray.nodes()))"
        done = subprocess.run(self.on(0, sys.executable, "-c", look), capture_output=True, text=True, check=False)
        return int(done.stdout.split()[-1]) if done.returncode == 0 else 0

    def cut(self) -> None:
        """Cut the cable."""
        _ip("-n", self._names[1], "link", "set", self._cable, "down")

    def close(self) -> None:
        """End what runs on the hosts, and the hosts."""
        for process in self._processes:
            os.killpg(process.pid, signal.SIGTERM)
        for name in self._names:
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
            for pid in listed.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            _ip("netns", "del", name)
        for process in self._processes:
            process.wait()


def main() -> None:
    """Caption three times, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder of pictures")
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--pack", default="builtin")
    parser.add_argument("--lm", default="writer")
    arguments = parser.parse_args()
    if os.geteuid() or shutil.which("ip") is None or shutil.which("unshare") is None:
        print("skipped: hosts of one machine need root, ip and unshare")
        return
    pictures = [str(path.absolute()) for path in find_images([arguments.folder])][: arguments.pictures]
    Path("/tmp/ray").mkdir(exist_ok=True)
    # newer versions of Ray let nobody in without a token; and on a busy machine workers that are nice get no turn
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16), "RAY_worker_niceness": "0"}
    os.environ |= own
    with tempfile.TemporaryDirectory(prefix="two-hosts") as folder:
        work = Path(folder)
        command = ["caption", "-", "--pack", arguments.pack, "--lm", arguments.lm]
        alone = caption(work / "alone.jsonl", command, pictures)
        hosts = Hosts(work)
        try:
            hosts.start()
            some = pictures[: max(1, len(pictures) // 10)]
            client = caption(work / "client.jsonl", command, some, hosts, f"ray://{ADDRESSES[0]}:{CLIENT_PORT}")
            cut = caption(work / "cut.jsonl", command, pictures, hosts, f"{ADDRESSES[0]}:{PORT}", cut=True)
        finally:
            hosts.close()
    well = [compare(alone, found, count) for found, count in ((client, len(some)), (cut, len(pictures)))]
    sys.exit(not all(well))


def caption(
    out: Path, command: list[str], pictures: list[str], hosts: Hosts | None = None, address: str = "", cut: bool = False
) -> dict[str, dict[str, Any]]:
    """Run ``recap caption``, on the first host if there are hosts, and return what it wrote by picture."""
    program = [sys.executable, "-m", "recap.cli.main", *command, "--out", str(out)]
    if hosts is not None:
        program = hosts.on(0, *program, f"--ray={address}")
    started = time.perf_counter()
    process = subprocess.Popen(program, stdin=subprocess.PIPE, text=True)
    cutter = threading.Thread(target=cut_when, args=(hosts, out, len(pictures) // 3, process), daemon=True)
    if cut:
        cutter.start()
    process.communicate("\n".join(pictures))
    if process.returncode:
        sys.exit(f"recap caption failed with {process.returncode}")
    print(f"{address or 'alone'}: {len(pictures)} pictures, {time.perf_counter() - started:.1f} s", flush=True)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    return {record["path"]: record for record in records}


def cut_when(hosts: Hosts, out: Path, wanted: int, process: subprocess.Popen[str]) -> None:
    """Cut the cable when so many captions are there; end the script if they all are before."""
    while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < wanted):
        time.sleep(0.1)
    if process.poll() is not None:
        print("all was done before the cable could be cut", flush=True)
        os._exit(1)
    hosts.cut()
    print(f"cable cut, {out.read_bytes().count(bytes([10]))} captions there", flush=True)


def compare(alone: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]], count: int) -> bool:
    """Print how many captions are there and equal, and tell whether all are."""
    equal = sum(alone[path]["caption"] == record["caption"] for path, record in found.items())
    print(f"{len(found)} of {count} captions there, {equal} equal to those of one machine")
    return bool(len(found) == equal == count)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


if __name__ == "__main__":
    main()
