from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.errors import InputError
from recap.language import Decoding, PromptTooLongError
from recap.language.prompt import (
    LENGTH,
    SEQUENCES,
    SLOTS,
    PromptTemplate,
    Style,
    WorkedExample,
    read,
    trim_caption,
    write_drafts,
)
from recap.types import Draft, Prompt

CAPTIONS = ["A dog runs.", " a cat\n sleeps . ", "two birds"]
LINES = st.text(st.characters(codec="utf-8"), max_size=30)


def test_the_prompt_of_the_paper() -> None:
    prompt = PromptTemplate.paper().render(CAPTIONS)
    assert prompt.text == "Similar images show: two birds, a cat sleeps, A dog runs This image shows:"
    assert prompt.captions == ("two birds", "a cat sleeps", "A dog runs")
    assert prompt.vector is None


def test_worked_examples_come_first_in_the_same_order() -> None:
    example = WorkedExample(("a red car", "a car."), "A red car on the road.")
    vector = np.ones(3, np.float32)
    prompt = PromptTemplate.worked([example]).render(CAPTIONS, vector)
    assert prompt.text == (
        "Similar images show: a car, a red car\nThis image shows: A red car on the road.\n\n"
        "Similar images show: two birds, a cat sleeps, A dog runs\nThis image shows:"
    )
    assert prompt.vector is vector


@pytest.mark.parametrize(("order", "first"), [("worst-to-best", "two birds"), ("best-to-worst", "A dog runs")])
def test_orders(order: str, first: str) -> None:
    assert PromptTemplate(order=order).render(CAPTIONS).captions[0] == first  # type: ignore[arg-type]


def test_random_order_depends_on_the_captions_only() -> None:
    template = PromptTemplate(order="random")
    many = [[f"caption {i} of {j}" for i in range(6)] for j in range(20)]
    rendered = [template.render(captions).captions for captions in many]
    assert rendered == [template.render(captions).captions for captions in many]
    assert all(sorted(shuffled) == sorted(captions) for shuffled, captions in zip(rendered, many, strict=True))
    assert len({tuple(caption.split()[1] for caption in row) for row in rendered}) > 10


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A dog.", "A dog"),
        ("  a\tdog \n runs . ", "a dog runs"),
        ("wait...", "wait"),
        ("犬が走る。", "犬が走る"),
        (" . ", ""),
    ],
)
def test_trim(caption: str, expected: str) -> None:
    assert trim_caption(caption) == expected


def test_a_full_stop_may_stay() -> None:
    template = PromptTemplate("{captions} So:", separator=" ", final_stop=True)
    assert template.render(CAPTIONS[:2]).text == "a cat sleeps . A dog runs. So:"


def test_braces_in_a_caption_mean_nothing() -> None:
    assert "a {captions} sign" in PromptTemplate().render(["a {captions} sign", "{0}"]).text


@given(
    text=LINES.filter(lambda t: "{captions}" not in t),
    examples=st.lists(st.builds(WorkedExample, st.lists(LINES, max_size=3).map(tuple), LINES), max_size=3),
    order=st.sampled_from(["worst-to-best", "best-to-worst", "random"]),
    final_stop=st.booleans(),
)
def test_json_and_back(text: str, examples: list[WorkedExample], order: str, final_stop: bool) -> None:
    template = PromptTemplate(
        "{captions}" + text,
        order=order,  # type: ignore[arg-type]
        final_stop=final_stop,
        examples=tuple(examples),
    )
    assert PromptTemplate.from_dict(json.loads(json.dumps(template.as_dict()))) == template


def test_settings_left_out_have_their_default() -> None:
    german = "Ähnliche Bilder zeigen: {captions} Dieses Bild zeigt:"
    assert PromptTemplate.from_dict({"text": german}) == PromptTemplate(german)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": "no place"}, "exactly once"),
        ({"order": "alphabetic"}, "unknown order"),
        ({"colour": "red"}, "unknown settings of a prompt template: colour"),
        ({"examples": [{"caption": "a dog"}]}, "worked example"),
    ],
)
def test_bad_settings(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PromptTemplate.from_dict(values)


def test_nothing_retrieved_and_unknown_language() -> None:
    with pytest.raises(InputError, match="at least one"):
        PromptTemplate().render([" . "])
    with pytest.raises(InputError, match=r"no prompt template in 'tlh'; known: de, en"):
        PromptTemplate.paper("tlh")


class Narrow:
    """A model that reads so many captions and no more, and repeats them."""

    name, completes, fingerprint = "narrow", False, "n"

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, prompts: list[Prompt], decoding: Decoding) -> list[list[Draft]]:
        for prompt in prompts:
            if len(prompt.captions) > self.room:
                raise PromptTooLongError(self.name, len(prompt.captions), self.room)
        return [[Draft(prompt.text, 0.0)] for prompt in prompts]


@pytest.mark.parametrize(("room", "written"), [(9, [["0:8"], ["1:3"]]), (3, [["0:2"], ["1:3"]]), (0, [[], []])])
def test_prompts_that_are_too_long_lose_half_of_their_captions(room: int, written: list[list[str]]) -> None:
    def prompt(row: int, k: int) -> Prompt:
        return Prompt(f"{row}:{k}", ["a dog"] * k)

    drafts = write_drafts(Narrow(room), Decoding(), prompt, [8, 3])
    assert [[draft.text for draft in row] for row in drafts] == written


def test_reading_counts_votes_by_rank_and_gives_slots_by_votes() -> None:
    captions = [[4, 20], [4, 5], [21, 20]]
    reading = read(captions, 10)
    weights = np.array([1 / 20, 1 / 21, 1 / 22])
    share = {
        4: weights[:2].sum() / weights.sum(),
        5: weights[1] / weights.sum(),
        20: weights[[0, 2]].sum() / weights.sum(),
        21: weights[2] / weights.sum(),
    }
    assert reading.outside == (20, 21)
    assert reading.tokens.tolist() == [4, 10, 4, 5, 11, 10, 4, 10, 5, 11]
    shown = [share[word] for word in (4, 20, 4, 5, 21, 20, 4, 20, 5, 21)]
    np.testing.assert_allclose(reading.shares, shown, rtol=1e-6)
    assert reading.places.tolist() == [0, 1, 0, 1, 0, 1, *[LENGTH] * 4]
    assert reading.ranks.tolist() == [0, 0, 1, 1, 2, 2, *[SEQUENCES] * 4]


def test_words_beyond_the_last_slot_are_unknown() -> None:
    reading = read([[100 + word] for word in range(SLOTS + 3)], 10)
    assert len(reading.outside) == SLOTS
    assert reading.tokens.max() == 10 + SLOTS - 1


@pytest.mark.parametrize(
    ("captions", "sentence"),
    [
        (["A dog in Paris.", "The Paris dog."], "A dog in Paris."),
        (["a dog in Paris", "the Paris dog"], "a dog in Paris"),
        (["犬がいる。", "犬"], "a dog in paris"),
    ],
)
def test_sentences_look_like_those_of_the_prompt(captions: list[str], sentence: str) -> None:
    assert Style(captions).sentence(["a", "dog", "in", "paris"]) == sentence


def test_scripts_without_spaces_are_joined() -> None:
    assert Style(["犬がいる"]).sentence(list("犬がいる")) == "犬がいる"
    shouted = ["A DOG IN THE PARK", "A CAT IN A DOG HOUSE", "a dog"]
    assert Style(shouted).sentence(["a", "dog"]) == "A dog"
