"""Packs in languages other than English: captions, prompt and words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from recap import ReCap
from recap.encoders import load_encoder
from recap.language import Decoding
from recap.types import Draft, Pair, Prompt

WORLDS = {
    "de": (
        {"red": "rote", "green": "grüne", "blue": "blaue", "yellow": "gelbe", "purple": "lila", "cyan": "türkise"},
        ("eine {} Wand", "die {} Wand steht hier", "jemand malte eine {} Wand"),
    ),
    "ja": (
        {"red": "赤", "green": "緑", "blue": "青", "yellow": "黄", "purple": "紫", "cyan": "空"},
        ("{}の壁です。", "これは{}の壁", "誰かが壁を{}に塗った"),
    ),
}


class Echo:
    """A language model that writes nothing new, and remembers its prompts."""

    name = "echo"

    def __init__(self, completes: bool) -> None:
        self.completes = completes
        self.prompts: list[Prompt] = []

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        self.prompts += prompts
        return [[Draft(prompt.captions[-1], -1.0)] for prompt in prompts]


@pytest.fixture(scope="module", params=["de", "ja"])
def world(request, pairs, make_world, tmp_path_factory) -> tuple[str, ReCap, Path, list[Pair]]:
    """A pack whose captions are in another language, with a text encoder that knows its words."""
    language = request.param
    colours, sayings = WORLDS[language]
    spoken = []
    for pair in pairs:
        colour = next(name for name in colours if pair.id.startswith(name))
        spoken.append(Pair(pair.image, tuple(saying.format(colours[colour]) for saying in sayings), pair.id))
    folder = make_world(tmp_path_factory.mktemp(language), [text for pair in spoken for text in pair.captions])
    captioner = ReCap.fit(
        spoken,
        encoder=load_encoder(f"onnx:{folder}"),
        language_model=None,
        method="ols",
        language=language,
        validation=spoken[::3],
    )
    captioner.save_pretrained(tmp_path_factory.mktemp("packs") / language)
    return language, captioner, folder, spoken


def test_captions_are_in_the_language_of_the_pack(world, new_pictures: dict[str, Path]):
    language, captioner, _, _ = world
    for colour, path in new_pictures.items():
        assert WORLDS[language][0][colour] in captioner.caption(path).text


def test_validation_counts_words_in_scripts_without_spaces(world):
    numbers = world[1].about.numbers
    assert numbers["cider_d"] > 50
    assert numbers["i2t_r5"] == 100


@pytest.mark.parametrize("completes", [True, False])
def test_the_prompt_is_in_the_language_of_the_pack(world, new_pictures: dict[str, Path], completes: bool):
    language, captioner, _, _ = world
    model = Echo(completes)
    captioner.configured(language_model=model, k=3).caption(new_pictures["red"])
    text = model.prompts[0].text
    before, after, separator = {
        "de": ("Ähnliche Bilder zeigen: ", "Dieses Bild zeigt:", ", "),
        "ja": ("似た画像の説明： ", "この画像の説明：", "、"),
    }[language]
    assert text.startswith(before)
    assert text.endswith(after)
    assert text.count(before) == (4 if completes else 1)
    assert separator.join(model.prompts[0].captions) in text
    assert "。" not in model.prompts[0].captions[0]


def test_a_pack_remembers_its_language(world, tmp_path: Path):
    language, captioner, _, _ = world
    captioner.save_pretrained(tmp_path / "pack")
    loaded = ReCap.from_pretrained(tmp_path / "pack")
    assert loaded.settings.language == language
    assert f"language: {language}\n" in (tmp_path / "pack/README.md").read_text()


def test_the_text_encoder_may_be_another_one_than_the_image_encoders(
    world, encoder_folder: Path, new_pictures: dict[str, Path]
):
    language, _, folder, spoken = world
    mixed = ReCap.fit(
        spoken, encoder=f"onnx:{encoder_folder},onnx:{folder}", language_model=None, method="ols", language=language
    )
    assert WORLDS[language][0]["blue"] in mixed.caption(new_pictures["blue"]).text
