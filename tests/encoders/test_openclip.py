"""Against open_clip itself, on a small model with random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from recap.encoders import load_encoder
from recap.encoders.base import Encoder
from recap.encoders.openclip import canonical, load_model, preprocessing_of, split_name
from recap.encoders.registry import OPENAI_CLIP, SIGLIP, list_encoders
from recap.errors import AssetError, InputError, OfflineError, RecapWarning

MakePicture = Callable[..., Image.Image]
TINY = {
    "embed_dim": 12,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 9, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="session")
def checkpoint(open_clip: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of ``recap-tiny``, which open_clip has been told about."""
    import torch

    folder = tmp_path_factory.mktemp("open_clip")
    (folder / "recap-tiny.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(folder / "recap-tiny.json")
    torch.manual_seed(0)
    torch.save(open_clip.create_model("recap-tiny").state_dict(), folder / "tiny.pt")
    return folder / "tiny.pt"


@pytest.fixture(scope="session")
def encoder(checkpoint: Path) -> Encoder:
    return load_encoder(f"open_clip:recap-tiny/{checkpoint}")


@pytest.fixture(scope="session")
def reference(open_clip: Any, checkpoint: Path) -> tuple[Any, Any, Any]:
    model, _, transform = open_clip.create_model_and_transforms("recap-tiny", pretrained=str(checkpoint))
    return model.eval(), transform, open_clip.get_tokenizer("recap-tiny")


def unit(rows: Any) -> np.ndarray:
    values = rows.detach().numpy()
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def test_images_agree_with_open_clip(encoder: Encoder, reference: Any, make_picture: MakePicture) -> None:
    import torch

    model, transform, _ = reference
    images = [make_picture(seed, size) for seed, size in enumerate([(40, 30), (31, 77), (32, 32), (20, 25), (160, 90)])]
    expected = unit(model.encode_image(torch.stack([transform(image) for image in images])))
    rows = encoder.encode_images(images)
    assert encoder.image.dimension == 12
    assert np.allclose(rows, expected, atol=1e-5)


@pytest.mark.parametrize("resize_mode", ["shortest", "squash", "longest"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(61, 40), (40, 97), (32, 32), (25, 20), (33, 32)])
def test_preprocessing_agrees_with_open_clip(
    open_clip: Any,
    checkpoint: Path,
    make_picture: MakePicture,
    resize_mode: str,
    interpolation: str,
    size: tuple[int, int],
) -> None:
    config = {"resize_mode": resize_mode, "interpolation": interpolation, "mean": (0.5, 0.4, 0.3), "fill_color": 9}
    model = open_clip.create_model("recap-tiny", force_preprocess_cfg=config)
    settings = open_clip.get_model_preprocess_cfg(model)
    transform = open_clip.image_transform(
        settings["size"],
        is_train=False,
        mean=settings["mean"],
        std=settings["std"],
        resize_mode=settings["resize_mode"],
        interpolation=settings["interpolation"],
        fill_color=settings["fill_color"],
    )
    picture = make_picture(3, size)
    assert np.allclose(preprocessing_of(model)(picture), transform(picture).numpy(), atol=1e-5)


def test_texts_agree_with_open_clip(encoder: Encoder, reference: Any) -> None:
    model, _, tokenizer = reference
    texts = ["a dog runs", "", "Two red houses by the sea!", "x"]
    expected = unit(model.encode_text(tokenizer(texts)))
    before = encoder.text.truncated
    assert np.allclose(encoder.encode_texts(texts), expected, atol=1e-5)
    assert encoder.text.truncated == before


def test_long_texts_keep_their_end_token_and_are_counted(encoder: Encoder, reference: Any) -> None:
    tokenizer = reference[2]
    before = encoder.text.truncated
    fits, long, longer = "a a a a a a a", "a a a a a a a a", "a a a a a a a b c d"
    rows = encoder.encode_texts([fits, long, longer])
    assert encoder.text.truncated == before + 2
    assert np.allclose(rows[0], rows[1], atol=1e-6)
    assert np.allclose(rows[0], rows[2], atol=1e-6)
    tokens, cut = encoder.text.tokenize([longer])
    assert cut == 1
    assert tokens[0][-1] == tokenizer.eot_token_id


class WordTokenizer:
    """The shape of open_clip's wrapper around a tokenizer of transformers, as SigLIP has it: pad and end are one."""

    context_length = 6

    class tokenizer:
        def __init__(self, text: str, truncation: bool) -> None:
            assert not truncation
            self.input_ids = [len(word) for word in text.split()] + [1]

    @staticmethod
    def clean_fn(text: str) -> str:
        return text.replace("!", " ")


def test_length_under_a_tokenizer_whose_padding_is_its_end(encoder: Encoder) -> None:
    import dataclasses

    from recap.encoders.openclip import OpenClipTextEncoder

    text = OpenClipTextEncoder.__new__(OpenClipTextEncoder)
    text._clip = dataclasses.replace(encoder.text._clip, tokenizer=WordTokenizer())
    assert text._length("a!b c d e") == 6
    assert text._length("a!b c d e f") == 7


def test_vectors_do_not_depend_on_neighbours(encoder: Encoder, make_picture: MakePicture) -> None:
    images = [make_picture(seed) for seed in range(18)]
    assert np.allclose(encoder.encode_images(images)[17], encoder.encode_images(images[17:])[0], atol=1e-6)
    texts = [f"dog {i}" for i in range(70)]
    assert np.allclose(encoder.encode_texts(texts)[69], encoder.encode_texts(texts[69:])[0], atol=1e-6)


def test_one_model_serves_both_sides_and_the_name_loads_again(encoder: Encoder, checkpoint: Path) -> None:
    assert encoder.name == f"open_clip:recap-tiny/{checkpoint}"
    assert encoder.image._clip is encoder.text._clip
    assert encoder.image.fingerprint != encoder.text.fingerprint
    again = load_encoder(encoder.name)
    assert (again.image.fingerprint, again.text.fingerprint) == (encoder.image.fingerprint, encoder.text.fingerprint)


def test_fingerprint_follows_the_weights_and_the_activation(
    open_clip: Any, encoder: Encoder, checkpoint: Path, tmp_path: Path
) -> None:
    import torch

    weights = torch.load(checkpoint)
    weights["visual.proj"][0, 0] += 1e-4
    torch.save(weights, tmp_path / "other.pt")
    other = load_encoder(f"open_clip:recap-tiny/{tmp_path / 'other.pt'}")
    assert other.image.fingerprint != encoder.image.fingerprint
    (tmp_path / "recap-tiny-quick.json").write_text(json.dumps({**TINY, "quick_gelu": True}))
    open_clip.add_model_config(tmp_path / "recap-tiny-quick.json")
    quick = load_encoder(f"open_clip:recap-tiny-quick/{checkpoint}")
    assert quick.image.fingerprint != encoder.image.fingerprint


@pytest.mark.parametrize(("tag", "activation"), [("openai", "QuickGELU"), ("laion2b_s34b_b79k", "GELU")])
def test_weights_that_need_quick_gelu_get_it(
    open_clip: Any, checkpoint: Path, tag: str, activation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model in the place of ViT-B-32: what open_clip says of the tags holds, but for where they are."""
    said = open_clip.get_pretrained_cfg("ViT-B-32", tag)
    address = {**said, "url": checkpoint.as_uri(), "hf_hub": ""}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "recap-tiny", {tag: address})
    monkeypatch.setenv("HOME", str(tmp_path))
    model = load_model(f"recap-tiny/{tag}").model
    assert type(model.visual.transformer.resblocks[0].mlp.gelu).__name__ == activation
    address["url"] = (tmp_path / "gone.pt").as_uri()
    with pytest.raises(OfflineError, match=f"recap-tiny/{tag}: the weights or the tokenizer are not on this machine"):
        load_model(f"recap-tiny/{tag}")


@pytest.fixture
def quick_sibling(open_clip: Any, tmp_path: Path) -> None:
    """The tiny model under two names, as open_clip has them for models of OpenAI."""
    for name, quick in (("recap-open", False), ("recap-open-quickgelu", True)):
        (tmp_path / f"{name}.json").write_text(json.dumps({**TINY, "quick_gelu": quick}))
        open_clip.add_model_config(tmp_path / f"{name}.json")


@pytest.mark.usefixtures("quick_sibling")
@pytest.mark.filterwarnings("ignore:Converting a tensor", "ignore::DeprecationWarning")
def test_a_local_archive_of_openai_gets_quick_gelu(open_clip: Any, checkpoint: Path, tmp_path: Path) -> None:
    import torch

    plain = open_clip.create_model("recap-open", pretrained=str(checkpoint)).eval()
    plain.attn_mask = None  # no part of OpenAI's weights, and traced as if it were one
    inputs = {"encode_image": torch.zeros(1, 3, 32, 32), "encode_text": torch.zeros(1, 9, dtype=torch.long)}
    torch.jit.trace_module(plain, inputs, check_trace=False).save(str(tmp_path / "archive.pt"))
    loaded = load_model(f"recap-open/{tmp_path / 'archive.pt'}").model
    by_name = load_model(f"recap-open-quickgelu/{checkpoint}").model
    pixels = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32))
    with torch.inference_mode():
        rows, named, gelu = (model.encode_image(pixels) for model in (loaded, by_name, plain))
    assert torch.allclose(rows, named, atol=1e-6)
    assert not torch.allclose(rows, gelu, atol=1e-4)


@pytest.mark.usefixtures("quick_sibling")
def test_files_that_may_be_openai_s_are_refused_or_warned_of(checkpoint: Path, tmp_path: Path) -> None:
    named = tmp_path / "vit.OpenAI.pt"
    named.write_bytes(checkpoint.read_bytes())
    with pytest.raises(InputError, match=f"write open_clip:recap-open-quickgelu/{named}"):
        load_model(f"recap-open/{named}")
    with pytest.warns(RecapWarning, match=f"write open_clip:recap-open-quickgelu/{checkpoint}"):
        load_model(f"recap-open/{checkpoint}")
    load_model(f"recap-open-quickgelu/{named}")


def test_a_local_siglip_checkpoint_is_prepared_as_siglip(
    open_clip: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model in the place of SigLIP: a checkpoint says nothing, and the published tags agree."""
    tags = open_clip.pretrained._PRETRAINED["ViT-B-16-SigLIP"]
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "recap-tiny", tags)
    prepared = preprocessing_of(load_model(f"recap-tiny/{checkpoint}").model)
    assert (prepared.resize, prepared.mean, prepared.std) == ("squash", (0.5,) * 3, (0.5,) * 3)


KNOWN = ["RN50", "ViT-B-32", "ViT-B-32-quickgelu", "ViT-L-14", "ViT-L-14-336"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ViT-B-32/openai", ("ViT-B-32", "openai")),
        ("ViT-B/32/openai", ("ViT-B-32", "openai")),
        ("ViT-L/14@336px/openai", ("ViT-L-14-336", "openai")),
        ("ViT-L/14/openai", ("ViT-L-14", "openai")),
        ("RN50//abs/olute.pt", ("RN50", "/abs/olute.pt")),
        ("RN50/rel/ative.pt", ("RN50", "rel/ative.pt")),
        ("ViT-B/32/rel/ative.pt", ("ViT-B-32", "rel/ative.pt")),
    ],
)
def test_names_are_split(name: str, expected: tuple[str, str]) -> None:
    assert split_name(name, KNOWN) == expected


def test_names_that_cannot_be_split() -> None:
    with pytest.raises(InputError, match="which weights"):
        split_name("ViT-B/32", KNOWN)
    with pytest.raises(InputError, match=r"no such model.*RN50"):
        split_name("ViT-Z/openai", KNOWN)
    assert canonical("ViT-L/14@336px") == "ViT-L-14-336"


def test_weights_and_devices_that_do_not_exist(checkpoint: Path, tmp_path: Path) -> None:
    import torch

    with pytest.raises(InputError, match="laion2b_s34b_b79k"):
        load_encoder("open_clip:ViT-B-32/no-such-tag")
    with pytest.raises(InputError, match="unknown device"):
        load_encoder(f"open_clip:recap-tiny/{checkpoint}", device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="cuda"):
            load_encoder(f"open_clip:recap-tiny/{checkpoint}", device="cuda")
    (tmp_path / "bad.pt").write_bytes(b"no checkpoint")
    with pytest.raises(AssetError, match=r"bad\.pt.*could not be loaded"):
        load_encoder(f"open_clip:recap-tiny/{tmp_path / 'bad.pt'}")


def test_what_is_listed_is_what_open_clip_has(open_clip: Any) -> None:
    assert len(OPENAI_CLIP) == 9
    for models, tag in ((OPENAI_CLIP, "openai"), (SIGLIP, "webli")):
        for model, dimension in models.items():
            assert open_clip.get_model_config(model)["embed_dim"] == dimension
            assert open_clip.get_pretrained_cfg(model, tag)
    listed = {info.name: info for info in list_encoders()}
    assert listed["open_clip:RN50x64/openai"].dimensions == (1024, 1024)
    assert listed["open_clip:RN50x64/openai"].missing_extra is None
