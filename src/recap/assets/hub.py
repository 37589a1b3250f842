"""Files and folders of the Hugging Face hub, through its own library and cache."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recap.errors import AssetError, DiskFullError, InputError, OfflineError


def hub_file(repository: str, filename: str, *, revision: str | None = None) -> Path:
    """Return the local path of one file of a hub repository, downloading it when needed (``HF_HUB_OFFLINE`` holds)."""
    from huggingface_hub import hf_hub_download

    with translate_errors(f"{repository}/{filename}"):
        return Path(hf_hub_download(repository, filename, revision=revision))


def hub_folder(
    repository: str,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
) -> Path:
    """Return the local folder of a hub repository."""
    from huggingface_hub import snapshot_download

    with translate_errors(repository):
        return Path(snapshot_download(repository, revision=revision, token=token))


def hub_cached(repository: str, filename: str, *, revision: str | None = None) -> Path | None:
    """Return the path of a hub file if it is on this machine already; asks nobody."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, filename, revision=revision)
    return Path(found) if isinstance(found, str) else None


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Turn the hub library's exceptions into ours."""
    from huggingface_hub import errors

    try:
        yield
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise OfflineError(
            f"{what}: not in the local hub cache, and the hub cannot be reached; check the network and HF_HUB_OFFLINE"
        ) from error
    except errors.HFValidationError as error:
        raise InputError(f"{what}: not a name of a hub repository (OWNER/NAME)") from error
    except errors.GatedRepoError as error:
        raise AssetError(f"{what}: the repository is gated; accept its terms on the hub and log in") from error
    except errors.RepositoryNotFoundError as error:
        raise AssetError(
            f"{what}: no such repository on the hub, or a private one and you are not logged in"
        ) from error
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise AssetError(f"{what}: the repository has no such file or revision") from error
    except errors.HfHubHTTPError as error:
        raise AssetError(f"{what}: the hub answered with an error: {error}") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFullError(f"{what}: no space left in the hub cache; free some or set HF_HOME") from error
        raise OfflineError(f"{what}: the hub cannot be reached ({error})") from error
