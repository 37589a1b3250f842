import json
from dataclasses import fields

import pytest

from recap.errors import InputError
from recap.language import Decoding, PromptTemplate, WorkedExample
from recap.packs.settings import SettingChanges, Settings


def test_settings_survive_json():
    settings = Settings(
        method="ols",
        decoding=Decoding(samples=3, temperature=0.0),
        prompt=PromptTemplate("Ähnliche Bilder zeigen: {captions} Dieses Bild zeigt:"),
        examples=(WorkedExample(("a", "b"), "c"),),
    )
    assert Settings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings
    assert Settings.from_dict({}) == Settings()


def test_but_reaches_into_decoding():
    changed = Settings().but(k=4, temperature=0.5, samples=20)
    assert (changed.k, changed.decoding.temperature, changed.decoding.samples) == (4, 0.5, 20)
    assert changed.decoding.seed == Settings().decoding.seed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "at least 1"),
        ({"pool": 0}, "at least 1"),
        ({"candidates": "all"}, "known: lm, retrieved, both"),
        ({"selection": "best"}, "known: consensus, cosine"),
        ({"temprature": 1}, "unknown setting temprature; known: "),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_bad_settings_say_what_is_known(changes: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        Settings().but(**changes)


def test_unknown_settings_of_a_newer_version_are_refused():
    with pytest.raises(InputError, match="unknown to this version"):
        Settings.from_dict({"sorcery": True})


def test_template_suits_the_model():
    examples = (WorkedExample(("a dog",), "a brown dog"),)
    settings = Settings(examples=examples)
    assert settings.template(completes=True).examples == examples
    assert settings.template(completes=False) == PromptTemplate.paper()
    own = PromptTemplate("Look: {captions} So:")
    assert Settings(prompt=own, examples=examples).template(completes=True) == own


def test_editors_are_told_every_setting_with_its_kind():
    known = {field.name: field.type for kind in (Settings, Decoding) for field in fields(kind)}
    told = {name: kind.__forward_arg__ for name, kind in SettingChanges.__annotations__.items()}
    assert told == known
