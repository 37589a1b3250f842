"""``config.json`` as a value: what is read is what is written, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from recap import ReCap, __version__
from recap.errors import PackError
from recap.files import check_seal
from recap.packs import config as card
from recap.packs.config import CONFIG, About, PackConfig
from recap.packs.settings import Settings
from recap.types import Pair


def change(folder: Path, **values: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **values}))


def test_what_is_read_is_written_again(folder: Path) -> None:
    before, config = (folder / CONFIG).read_bytes(), PackConfig.read(folder)
    assert (config.recap_version, config.datastore, config.captions) == (__version__, "", None)
    assert config.files.keys() >= {"alignment.safetensors", "statistics.safetensors"}
    config.write()
    assert (folder / CONFIG).read_bytes() == before
    with pytest.raises(FrozenInstanceError):
        config.encoder = "other"  # type: ignore[misc]


def test_a_change_is_another_state_and_is_sealed(folder: Path) -> None:
    config = PackConfig.read(folder)
    moved = config.but(datastore="milvus:captions.db")
    assert config.is_current()
    moved.write()
    assert not config.is_current()
    assert PackConfig.read(folder) == moved
    check_seal(folder / CONFIG)


def test_configs_of_older_and_newer_versions_are_read(folder: Path) -> None:
    values = json.loads((folder / CONFIG).read_text())
    for name in ("generation", "recap_version", "about", "files", "checksum"):
        del values[name]
    (folder / CONFIG).write_text(json.dumps({**values, "invented later": 1}))
    config = PackConfig.read(folder)
    assert (config.generation, config.recap_version, config.files) == ("", "", {})
    assert config.is_current()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoder": 3}, "encoder must be a text, not int"),
        ({"datastore": "/etc/passwd"}, "begins with milvus:"),
        ({"datastore": ["milvus:a"]}, "begins with milvus:"),
        ({"settings": None}, "wrong kind"),
        ({"about": {"author": 3}}, "wrong kind"),
        ({"files": []}, "files must be a table"),
        ({"generation": 7}, "generation must be a text"),
    ],
)
def test_what_is_of_the_wrong_kind_is_named(folder: Path, values: dict[str, object], message: str) -> None:
    change(folder, **values)
    with pytest.raises(PackError, match=rf"config\.json: .*{message}"):
        PackConfig.read(folder)


def test_a_folder_without_one_is_no_pack(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"has no config\.json"):
        PackConfig.read(tmp_path)


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
