import json

import pytest

from recap.server.chat import ABILITIES, CANNOT, read_prompt, tell_caption, tell_json, tell_judgement, tell_tags
from recap.types import Caption, Tag


@pytest.mark.parametrize(
    ("prompt", "wish", "statement"),
    [
        ("", "caption", ""),
        ("Describe this image in detail.", "caption", ""),
        ("What is in this picture?", "caption", ""),
        ("Write an alt text for this image", "alt", ""),
        ("List 5 tags, comma separated", "tags", ""),
        ("Give me keywords for my photo library.", "tags", ""),
        ('Is "a cat on a sofa" a correct caption? Answer yes or no.', "judge", "a cat on a sofa"),
        ('Does "two dogs" describe the picture?', "judge", "two dogs"),
        ("Is there a dog in the picture?", "judge", "a dog"),
        ("Does this image show a red wall?", "judge", "a red wall"),
        ("Answer with yes or no: is this a cat?", "judge", "a cat"),
        ("How many people are there?", "other", ""),
        ("Translate the sign", "other", ""),
    ],
)
def test_what_a_prompt_asks_for(prompt: str, wish: str, statement: str):
    asked = read_prompt(prompt)
    assert (asked.wish, asked.statement) == (wish, statement)


def test_answers():
    unsure = Caption("a cat", 0.3, (), (), "likely", 0.2)
    assert tell_caption(unsure, "caption") == "a cat (I am not sure of this: 20%.)"
    assert tell_caption(unsure, "alt") == "a cat"
    assert tell_caption(unsure, "other").startswith(CANNOT)
    assert ABILITIES in CANNOT
    assert tell_tags([Tag("cat", 0.9), Tag("sofa", 0.6)]) == "cat, sofa"
    assert tell_tags([]).startswith("I found no keyword")
    assert tell_judgement("a cat", 0.8).startswith("Yes")
    assert tell_judgement("a cat", 0.2).startswith("No")
    assert json.loads(tell_json(unsure, [Tag("cat", 0.9)]))["tags"] == ["cat"]
