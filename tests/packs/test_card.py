from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from recap import ReCap
from recap.packs import card
from recap.packs.card import About
from recap.packs.settings import Settings
from recap.types import Pair

FACTS = card.Facts(
    encoder="tinyvit,minilm",
    method="ols",
    pairs=120.0,
    sources={"walls": 100, "": 20},
    language_model="none",
    settings=Settings(language="de"),
    about=About(
        description="Walls of Vienna.\nTaken by hand.",
        author="Ada | Bo",
        licence="CC-BY-4.0",
        numbers={"pictures": 12, "cider_d": 56.78, "i2t_r1": 31.0},
        tuned=("method ols", "pool 30"),
    ),
)


def test_the_hub_reads_the_front_matter():
    data = ModelCard(card.new_card(FACTS)).data
    assert (data.license, data.language, data.library_name) == ("cc-by-4.0", "de", "recap")
    assert data.pipeline_tag == "image-to-text"
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value) == ("cider-d", 56.78)


def test_a_licence_in_words_and_none_at_all():
    own = replace(FACTS, about=About(licence="Only for the museum: ask first"))
    data = ModelCard(card.new_card(own)).data
    assert (data.license, data.license_name) == ("other", "Only for the museum: ask first")
    assert ModelCard(card.new_card(replace(FACTS, about=About()))).data.license is None


def test_the_text_says_what_is_inside():
    text = card.new_card(FACTS)
    for line in (
        "# Walls of Vienna\n",
        "120 captions to retrieve from",
        "| sources of the captions | unnamed (20), walls (100) |",
        "| author | Ada \\| Bo |",
        "| licence of the captions | CC-BY-4.0 |",
        "| CIDEr-D | 56.8 |",
        "Chosen on the same pictures: method ols, pool 30.",
    ):
        assert line in text


def test_what_the_author_wrote_stays():
    mine = card.new_card(FACTS).replace("# Walls of Vienna", "# My title") + "\nA word of thanks.\n"
    grown = replace(FACTS, sources={"walls": 7000})
    new = card.refreshed(mine, grown)
    assert "# My title" in new
    assert new.endswith("\nA word of thanks.\n")
    assert "7,000 captions" in new
    assert "120 captions" not in new
    assert card.refreshed("# nothing of recap's\n", grown) == "# nothing of recap's\n"


@pytest.mark.parametrize("wrong", [{"licence": 3}, {"numbers": []}])
def test_a_config_that_says_nonsense(wrong: dict[str, object]):
    with pytest.raises(ValueError, match="wrong kind"):
        About.from_dict(wrong)


def test_a_pack_keeps_what_is_said_about_it(fit: Callable[..., ReCap], pairs: list[Pair], tmp_path: Path):
    said = About(description="Walls", author="Ada", licence="MIT")
    fit(pairs, about=said).save_pretrained(tmp_path / "pack")
    loaded = ReCap.from_pretrained(tmp_path / "pack")
    loaded.save_pretrained(tmp_path / "copy")
    again = ReCap.from_pretrained(tmp_path / "copy").about
    assert (again.description, again.author, again.licence) == ("Walls", "Ada", "MIT")
    assert again.data["pictures"] == 18
