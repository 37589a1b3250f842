from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap import registry
from recap.assets import is_cached
from recap.encoders import Encoder, list_encoders, load_encoder
from recap.encoders.cache import VectorCache
from recap.encoders.registry import parse
from recap.errors import InputError, MissingExtraError

MakePicture = Callable[..., Image.Image]
EXAMPLES = Path(__file__).parents[2] / "examples" / "pictures"
TEXTS = ["a dog runs on the beach", "a puppy is running by the sea", "the stock market fell", ""]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("builtin", (("eyes-large",), "eyes-large")),
        ("builtin-fast", (("eyes",), "eyes")),
        ("builtin-large", (("eyes-large",), "eyes-large")),
        ("builtin-judge", (("eyes-large", "dinov2"), "eyes@bare+minilm@bare")),
        ("eyes,minilm", (("eyes",), "minilm")),
        ("tinyvit+dinov2,minilm", (("tinyvit", "dinov2"), "minilm")),
        ("builtin,builtin+minilm@bare", (("eyes-large",), "eyes-large+minilm@bare")),
        ("open_clip:RN50/openai", (("open_clip:RN50/openai",), "open_clip:RN50/openai")),
        ("open_clip:RN50/openai,minilm", (("open_clip:RN50/openai",), "minilm")),
        ("tinyvit+onnx:folder", (("tinyvit", "onnx:folder"), "onnx:folder")),
        ("dinov2,onnx:folder", (("dinov2",), "onnx:folder")),
    ],
)
def test_grammar(spec: str, expected: tuple[tuple[str, ...], str]) -> None:
    assert parse(spec) == expected


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("tinyvit", "no text encoder is named.*tinyvit,minilm"),
        ("tinyvit+dinov2", "no text encoder is named"),
        ("minilm", "texts only"),
        ("tinyvit,dinov2", "images only"),
        ("tinyvit,minilm+dinov2", "dinov2 encodes images only"),
        ("resnet,minilm", "unknown encoder 'resnet'.*builtin-fast.*open_clip:MODEL/PRETRAINED"),
        ("tinyvit,bert", "unknown encoder 'bert'"),
        ("", "unknown encoder ''"),
        ("tinyvit+,minilm", "unknown encoder ''"),
        ("onnx:", "unknown encoder 'onnx:'; did you mean onnx:FOLDER"),
        ("open_clip:a/b+onnx:c", "whose text encoder"),
        ("tinyvit,minilm,minilm", "unknown encoder 'minilm,minilm'"),
    ],
)
def test_wrong_names(spec: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        load_encoder(spec)


def test_pair_alone_and_joined(onnx_pair: Path, make_picture: MakePicture) -> None:
    pair = f"onnx:{onnx_pair}"
    alone = load_encoder(pair)
    assert isinstance(alone, Encoder)
    assert alone.name == pair
    joined = load_encoder(f"{pair}+{pair},{pair}")
    images = [make_picture(seed) for seed in range(3)]
    single = alone.encode_images(images)
    assert np.allclose(joined.encode_images(images), np.concatenate([single, single], axis=1) / np.sqrt(2), atol=1e-6)
    assert joined.name == f"{pair}+{pair},{pair}"
    assert load_encoder(joined.name).image.fingerprint == joined.image.fingerprint
    assert np.array_equal(joined.encode_texts(["a dog"]), alone.encode_texts(["a dog"]))
    results = list(joined.encode_each([images[0], b"no picture"]))
    assert np.allclose(results[0], joined.encode_images(images)[0])
    assert isinstance(results[1], Exception)


def test_cache_by_path_or_object(onnx_pair: Path, tmp_path: Path, make_picture: MakePicture) -> None:
    encoder = load_encoder(f"onnx:{onnx_pair}", cache=tmp_path / "v.db")
    rows, texts = encoder.encode_images([make_picture()]), encoder.encode_texts(["a dog"])
    with VectorCache(tmp_path / "v.db") as cache:
        assert cache.count() == 2
        again = load_encoder(f"onnx:{onnx_pair}", cache=cache)
        assert np.array_equal(again.encode_images([make_picture()]), rows)
        assert np.array_equal(again.encode_texts(["a dog"]), texts)


def test_listing_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {info.name: info for info in list_encoders()}
    assert [listed[name].dimensions for name in ("builtin", "builtin-fast", "minilm")] == [
        (512, 512),
        (512, 512),
        (None, 384),
    ]
    assert all(info.licence for info in listed.values())
    real = importlib.util.find_spec
    monkeypatch.setattr(registry, "find_spec", lambda name: None if name == "open_clip" else real(name))
    missing = {info.name: info.missing_extra for info in list_encoders()}
    assert missing["open_clip:ViT-B-32/openai"] == "clip"
    assert missing["open_clip:ViT-B-16-SigLIP/webli"] == "clip,hf"
    assert missing["builtin"] is None


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[clip\]"):
        load_encoder("open_clip:ViT-B-32/openai")


def _cached(*names: str) -> bool:
    return all(is_cached(name) for name in names)


needs_weights = pytest.mark.skipif(
    not _cached("tinyvit", "dinov2", "minilm", "minilm-tokenizer"), reason="run `recap setup` first"
)


@needs_weights
def test_frozen_pair(make_picture: MakePicture) -> None:
    encoder = load_encoder("tinyvit+dinov2,minilm")
    assert not encoder.shares_space
    rows = encoder.encode_images([make_picture(seed, (300, 240)) for seed in range(3)])
    assert rows.shape == (3, 704)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert np.allclose(np.linalg.norm(rows[:, :320], axis=1), np.sqrt(0.5), atol=1e-5)
    small = load_encoder("tinyvit,minilm")
    assert np.allclose(small.encode_images([make_picture(0, (300, 240))])[0], rows[0, :320] * np.sqrt(2), atol=1e-5)
    vectors = encoder.encode_texts(TEXTS)
    assert vectors.shape == (4, 384)
    assert vectors[0] @ vectors[1] > 0.6 > 0.2 > vectors[0] @ vectors[2]
    assert np.array_equal(encoder.encode_texts(TEXTS[1:2])[0], vectors[1])


@needs_weights
def test_eyes_share_a_space_and_look_at_one_thing_at_a_time(make_picture: MakePicture) -> None:
    encoder = load_encoder("builtin-fast")
    assert encoder.name == "eyes"
    assert encoder.shares_space
    pictures = [make_picture(seed, (300, 240)) for seed in range(3)]
    rows = encoder.encode_images(pictures)
    assert rows.shape == (3, 512)
    assert np.array_equal(encoder.encode_images(pictures[1:2])[0], rows[1])
    vectors = encoder.encode_texts(TEXTS)
    assert vectors.shape == (4, 512)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert np.array_equal(encoder.encode_texts(TEXTS[1:2])[0], vectors[1])


@needs_weights
def test_eyes_know_a_cat() -> None:
    encoder = load_encoder("eyes")
    cat = encoder.encode_images([EXAMPLES / "cat.jpg"])[0]
    said = encoder.encode_texts(["a cat", "a cup of coffee", "an airplane in the sky", "a group of people"])
    assert (said @ cat).argmax() == 0


@needs_weights
def test_large_eyes_share_the_space_of_the_small_ones_and_add_to_their_details() -> None:
    large, small = load_encoder("builtin"), load_encoder("builtin-fast")
    assert (large.name, large.shares_space) == ("eyes-large", True)
    assert large.sight != small.sight, "a writer that knows the one need not know the other"
    assert large.text.fingerprint == small.text.fingerprint
    assert large.image.fingerprint != small.image.fingerprint
    pictures = [EXAMPLES / "cat.jpg", EXAMPLES / "coffee.jpg"]
    seen, known = (np.stack(list(encoder.encode_each(pictures, details=True))) for encoder in (large, small))
    placed = seen[:, 512:].reshape(2, 49, 256)
    assert np.array_equal(placed[..., :128].reshape(2, -1), known[:, 512:])
    assert 0.5 < placed[..., 128:].std() < 2, "patches in their main directions, about unit variance each"
    cosines = (seen[:, :512] * known[:, :512]).sum(1)
    assert ((cosines > 0.6) & (cosines < 0.99)).all()
    said = large.encode_texts(["a cat", "a cup of coffee", "an airplane in the sky", "a group of people"])
    assert (said @ seen[:, :512].T).argmax(0).tolist() == [0, 1]
    assert np.array_equal(large.encode_images(pictures[1:])[0], large.encode_images(pictures)[1])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ViT-B/32", "open_clip:ViT-B-32/openai"),
        ("vit-b-32", "open_clip:ViT-B-32/openai"),
        ("openai/clip-vit-base-patch32", "open_clip:ViT-B-32/openai"),
        ("ViT-L/14@336px", "open_clip:ViT-L-14-336/openai"),
        ("RN50x64", "open_clip:RN50x64/openai"),
        ("clip", "open_clip:ViT-B-32/openai"),
        ("siglip", "open_clip:ViT-B-16-SigLIP/webli"),
        ("google/siglip-large-patch16-384", "open_clip:ViT-L-16-SigLIP-384/webli"),
        ("RN50@views", "open_clip:RN50/openai@views"),
    ],
)
def test_what_people_call_clip_is_understood(name: str, meant: str):
    text = meant.removesuffix("@views")
    assert parse(name + (",minilm" if "@views" in name else "")) == ((meant,), "minilm" if "@views" in name else text)
    assert parse(f"{name}+dinov2,{text}") == ((meant, "dinov2"), text)


def test_other_names_of_the_hub_are_answered_with_the_exact_one():
    with pytest.raises(InputError, match="is named open_clip:hf-hub:laion/CLIP-ViT-H-14"):
        parse("laion/CLIP-ViT-H-14")
