from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from PIL import Image

from recap.encoders.base import LoadOptions
from recap.encoders.onnx import OnnxImageEncoder, OnnxTextEncoder, load_image_side, load_text_side, pool
from recap.encoders.preprocess import Preprocess
from recap.errors import InputError

MakePicture = Callable[..., Image.Image]
PREPROCESS = Preprocess(size=16)


@pytest.mark.parametrize("patches", [False, True])
def test_vectors_equal_the_oracle_and_ignore_their_neighbours(
    tmp_path: Path, tiny: ModuleType, make_picture: MakePicture, patches: bool
) -> None:
    model = tiny.save_image_model(tmp_path / "m.onnx", patches=patches)
    encoder = OnnxImageEncoder(model, PREPROCESS, name="tiny", pooling="mean" if patches else "none")
    images = [make_picture(seed, (40 + seed, 30)) for seed in range(19)]
    rows = encoder.encode_images(images)
    assert encoder.dimension == 6
    assert np.allclose(rows, [tiny.image_oracle(PREPROCESS(image)) for image in images], atol=1e-5)
    assert np.array_equal(encoder.encode_images(images[7:9]), rows[7:9])


def test_first_pooling_takes_the_first_patch(tmp_path: Path, tiny: ModuleType, make_picture: MakePicture) -> None:
    model = tiny.save_image_model(tmp_path / "m.onnx", patches=True)
    first = OnnxImageEncoder(model, PREPROCESS, name="tiny", pooling="first")
    picture = make_picture()
    output = first._network.run({"pixels": PREPROCESS(picture)[None]})[0, 0, 0]
    assert np.allclose(first.encode_images([picture])[0], output / np.linalg.norm(output), atol=1e-6)


def test_pooling_must_fit_the_output(tmp_path: Path, tiny: ModuleType) -> None:
    model = tiny.save_image_model(tmp_path / "m.onnx", patches=True)
    with pytest.raises(InputError, match="mean or first"):
        OnnxImageEncoder(model, PREPROCESS, name="tiny")
    with pytest.raises(InputError, match="unknown pooling"):
        OnnxImageEncoder(model, PREPROCESS, name="tiny", pooling="max")
    assert np.array_equal(pool(np.arange(12.0).reshape(1, 2, 2, 3), "mean"), [[4.5, 5.5, 6.5]])


def test_a_model_with_a_fixed_batch(tmp_path: Path, tiny: ModuleType, make_picture: MakePicture) -> None:
    one = OnnxImageEncoder(tiny.save_image_model(tmp_path / "1.onnx", batch=1), PREPROCESS, name="tiny")
    assert one.encode_images([make_picture(seed) for seed in range(3)]).shape == (3, 6)
    with pytest.raises(InputError, match="fixed at 4"):
        OnnxImageEncoder(tiny.save_image_model(tmp_path / "4.onnx", batch=4), PREPROCESS, name="tiny")


def test_fingerprint_follows_weights_preprocessing_and_pooling(tmp_path: Path, tiny: ModuleType) -> None:
    first = tiny.save_image_model(tmp_path / "a.onnx", patches=True)
    second = tiny.save_image_model(tmp_path / "b.onnx", patches=True, seed=1)
    squash = Preprocess(size=16, resize="squash")
    same = OnnxImageEncoder(first, PREPROCESS, name="other name", pooling="mean").fingerprint
    prints = [
        OnnxImageEncoder(first, PREPROCESS, name="tiny", pooling="mean").fingerprint,
        OnnxImageEncoder(second, PREPROCESS, name="tiny", pooling="mean").fingerprint,
        OnnxImageEncoder(first, squash, name="tiny", pooling="mean").fingerprint,
        OnnxImageEncoder(first, PREPROCESS, name="tiny", pooling="first").fingerprint,
    ]
    assert prints[0] == same
    assert len(set(prints)) == 4
    (tmp_path / "a.onnx_data").write_bytes(b"weights kept outside")
    assert OnnxImageEncoder(first, PREPROCESS, name="tiny", pooling="mean").fingerprint not in prints


def test_devices_and_files_that_do_not_work(tmp_path: Path, tiny: ModuleType) -> None:
    model = tiny.save_image_model(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="mps"):
        OnnxImageEncoder(model, PREPROCESS, name="tiny", options=LoadOptions("mps"))
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(InputError, match="onnxruntime-gpu"):
            OnnxImageEncoder(model, PREPROCESS, name="tiny", options=LoadOptions("cuda"))
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"bad\.onnx"):
        OnnxImageEncoder(tmp_path / "bad.onnx", PREPROCESS, name="tiny")
    with pytest.raises(InputError, match="size is 8"):
        OnnxImageEncoder(model, Preprocess(size=8), name="tiny")


@pytest.fixture
def text_encoder(tmp_path: Path, tiny: ModuleType) -> OnnxTextEncoder:
    model, tokenizer = tiny.save_text_model(tmp_path / "t.onnx"), tiny.save_tokenizer(tmp_path / "tokenizer.json")
    return OnnxTextEncoder(model, tokenizer, name="tiny", max_length=6, pooling="mean")


def test_texts_equal_the_oracle(text_encoder: OnnxTextEncoder, tiny: ModuleType) -> None:
    texts = ["a red dog", "", "dog", "a strange dog"]
    tokens = [["a", "red", "dog"], [], ["dog"], ["a", "[UNK]", "dog"]]
    expected = [tiny.text_oracle(["[CLS]", *words, "[SEP]"]) for words in tokens]
    assert np.allclose(text_encoder.encode_texts(texts), expected, atol=1e-6)
    assert text_encoder.truncated == 0


def test_long_texts_keep_their_end_token_and_are_counted(text_encoder: OnnxTextEncoder, tiny: ModuleType) -> None:
    rows = text_encoder.encode_texts(["a red dog runs", "a red dog runs house sea", "sea " * 50])
    kept = tiny.text_oracle(["[CLS]", "a", "red", "dog", "runs", "[SEP]"])
    assert np.allclose(rows[0], kept, atol=1e-6)
    assert np.allclose(rows[1], kept, atol=1e-6)
    assert np.allclose(rows[2], tiny.text_oracle(["[CLS]", *["sea"] * 4, "[SEP]"]), atol=1e-6)
    assert text_encoder.truncated == 2


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=30), min_size=1, max_size=8))
def test_a_text_does_not_depend_on_its_neighbours(text_encoder: OnnxTextEncoder, texts: list[str]) -> None:
    texts = [text.encode(errors="ignore").decode() for text in texts]
    together = text_encoder.encode_texts(texts)
    for text, row in zip(texts, together, strict=True):
        assert np.array_equal(text_encoder.encode_texts([text])[0], row)


def test_padding_for_models_that_want_it(tmp_path: Path, tiny: ModuleType) -> None:
    model, tokenizer = tiny.save_text_model(tmp_path / "t.onnx"), tiny.save_tokenizer(tmp_path / "tokenizer.json")
    padded = OnnxTextEncoder(model, tokenizer, name="tiny", max_length=6, pooling="mean", padding=True)
    assert np.allclose(padded.encode_texts(["dog"])[0], tiny.text_oracle(["[CLS]", "dog", "[SEP]"]), atol=1e-6)
    feeds = []
    real = padded._network
    padded._network = type("Spy", (), {"run": lambda self, feed: feeds.append(feed) or real.run(feed)})()
    padded.encode_texts(["dog"])
    assert feeds[0]["input_ids"].tolist() == [[1, 6, 2, 0, 0, 0]]
    assert feeds[0]["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0]]


def test_models_that_read_32_bit_integers(tmp_path: Path, tiny: ModuleType) -> None:
    model = tiny.save_text_model(tmp_path / "t.onnx", kind=TensorProto.INT32)
    encoder = OnnxTextEncoder(model, tiny.save_tokenizer(tmp_path / "tokenizer.json"), name="tiny", max_length=6)
    assert np.allclose(encoder.encode_texts(["dog"])[0], tiny.text_oracle(["[CLS]", "dog", "[SEP]"]), atol=1e-6)


def test_pair_of_a_folder(onnx_pair: Path, tiny: ModuleType, make_picture: MakePicture) -> None:
    image, text = load_image_side(onnx_pair), load_text_side(onnx_pair)
    assert np.allclose(
        image.encode_images([make_picture()])[0], tiny.image_oracle(PREPROCESS(make_picture())), atol=1e-5
    )
    assert np.allclose(text.encode_texts(["dog"])[0], tiny.text_oracle(["[CLS]", "dog", "[SEP]"]), atol=1e-6)
    assert image.name == text.name == f"onnx:{onnx_pair}"
    assert image.fingerprint != text.fingerprint


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{", "not valid json"),
        ("[]", "no part 'image'"),
        ({"text": {"max_length": 6}}, "no part 'image'"),
        ({"image": {"size": 16, "colour": 1}}, "unknown keys"),
        ({"image": {"size": "large"}}, "image:"),
        ({"image": {"size": 16, "interpolation": "best"}}, "interpolation"),
    ],
)
def test_wrong_config(onnx_pair: Path, config: object, reason: str) -> None:
    (onnx_pair / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(InputError, match=reason) as caught:
        load_image_side(onnx_pair)
    assert "config.json" in str(caught.value)


def test_incomplete_folder(onnx_pair: Path) -> None:
    (onnx_pair / "config.json").write_text(json.dumps({"image": {"size": 16}, "text": {}}))
    with pytest.raises(InputError, match="max_length"):
        load_text_side(onnx_pair)
    (onnx_pair / "image.onnx").unlink()
    with pytest.raises(InputError, match=r"no image\.onnx"):
        load_image_side(onnx_pair)
    with pytest.raises(InputError, match=r"no config\.json"):
        load_image_side(onnx_pair / "elsewhere")
    (onnx_pair / "tokenizer.json").write_text("{}")
    (onnx_pair / "config.json").write_text(json.dumps({"text": {"max_length": 6}}))
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        load_text_side(onnx_pair)


def test_files_run_one_after_the_other(tmp_path: Path, tiny: ModuleType, make_picture: MakePicture) -> None:
    whole = tiny.save_image_model(tmp_path / "m.onnx")
    double = tiny.save_model(
        tmp_path / "double.onnx",
        [helper.make_node("Concat", ["x", "x"], ["output"], axis=1)],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])],
        {},
        ["batch", "12"],
    )
    alone = OnnxImageEncoder(whole, PREPROCESS, name="tiny")
    chained = OnnxImageEncoder((whole, double), PREPROCESS, name="tiny")
    row, twice = alone.encode_images([make_picture()])[0], chained.encode_images([make_picture()])[0]
    assert np.allclose(twice, np.concatenate([row, row]) / np.sqrt(2), atol=1e-6)
    assert chained.fingerprint != alone.fingerprint
