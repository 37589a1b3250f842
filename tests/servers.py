"""Servers that tests and benchmarks start on this machine, each in a folder of its own."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

START_SECONDS = 180
"""How long a server may take until it answers."""
QUICK = ("proxy.timeTickInterval=20", "queryCoord.checkInterval=100", "queryCoord.distPullInterval=50")
"""Options of Milvus for tests: answers that have to know all that was written before wait for a tick."""


def find_program(name: str) -> str | None:
    """Return the path of a program: beside this interpreter, or on the PATH."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class MilvusServer:
    """A Milvus of one machine, as the package ``milvus`` brings it; what it keeps is in ``folder``."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        program = find_program("milvus-server")
        if program is None:
            raise FileNotFoundError("the server of Milvus is not installed: pip install milvus==2.3.5")
        port = free_port()
        self.folder, self.server = folder, f"http://127.0.0.1:{port}"
        self._command = [program, "--data", str(folder), "--proxy-port", str(port)]
        for option in ("log.level=error", *options):
            self._command += ["--extra-config", option]
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, collection: str, index: str = "") -> str:
        """Return the address of a collection, as ``open_store`` takes it."""
        return f"milvus:{self.server}?collection={collection}" + (f"&index={index}" if index else "")

    def start(self) -> None:
        """Start it, in a session of its own, and wait until it answers; ``RuntimeError`` if it does not."""
        # it looks for free ports before it takes them, so only one may start at a time
        with FileLock(Path(tempfile.gettempdir()) / "recap-milvus-server.lock"):
            with (self.folder / "server.log").open("ab") as log:
                again = (self.folder / "bin" / "milvus").exists()
                options: dict[str, Any] = self._again() if again else {"args": self._command}
                self._process = subprocess.Popen(**options, stdout=log, stderr=log, start_new_session=True)
            end = time.monotonic() + START_SECONDS
            while not self._answers():
                if time.monotonic() > end:
                    self.kill()
                    raise RuntimeError(f"the server of Milvus did not start; see the logs in {self.folder}")
                time.sleep(0.5)

    def _again(self) -> dict[str, Any]:
        """Return how the program itself is run: the one that unpacked it would take another port than before."""
        places = {"LD_LIBRARY_PATH": str(self.folder / "bin"), "MILVUS_RUN_DIR": str(self.folder / "run")}
        settings = {"DEPLOY_MODE": "STANDALONE", "METRICS_PORT": str(free_port()), **places}
        command = [str(self.folder / "bin" / "milvus"), "run", "standalone"]
        return {"args": command, "cwd": self.folder, "env": {**os.environ, **settings}}

    def _answers(self) -> bool:
        import grpc
        from pymilvus import MilvusClient, MilvusException

        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        try:
            MilvusClient(self.server, timeout=5).list_collections(timeout=5)
        except (MilvusException, grpc.RpcError):
            return False
        return True

    def memory(self) -> int:
        """Return the bytes of memory that it uses."""
        assert self._process is not None
        pages = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _group(entry) == self._process.pid:
                pages += int((entry / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """End it by SIGKILL, with the process that looks after it."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def _group(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[2])
    except OSError:
        return 0
