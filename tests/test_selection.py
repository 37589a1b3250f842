import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.selection import (
    AGREEMENT_WEIGHT,
    DOUBT_WEIGHT,
    ECHO_WEIGHT,
    LEAST_SENTENCE,
    LIKELIHOOD_WEIGHT,
    SENTENCE_WEIGHT,
    SUPPORT,
    UNWRITTEN_LOGPROB,
    UNWRITTEN_WORD,
    Proposals,
    agreement,
    by_consensus,
    by_cosine,
    by_likelihood,
    doubts,
    echoes,
    gather_candidates,
    is_degenerate,
    shorten,
)
from recap.types import Candidate, Draft, Evidence

SENTENCES = st.lists(
    st.sampled_from(["a", "dog", "cat", "runs", "on", "the", "red", "grass"]), min_size=1, max_size=9
).map(" ".join)


def evidence(*texts: str, similarities: list[float] | None = None) -> list[Evidence]:
    return [Evidence(text, value) for text, value in zip(texts, similarities or [0.5] * len(texts), strict=True)]


def reference_agreement(left: str, right: str) -> float:
    """The formula, pair by pair and with dictionaries."""
    a, b = left.split(), right.split()
    total = 0.0
    for order in (1, 2):
        grams = [[tuple(t[i : i + order]) for i in range(len(t) - order + 1)] for t in (a, b)]
        keys = sorted(set(grams[0]) | set(grams[1]))
        x, y = (np.array([g.count(key) for key in keys], float) for g in grams)
        if x.any() and y.any():
            total += x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    return total / 2 * np.exp(-((len(a) - len(b)) ** 2) / 72)


@given(st.lists(SENTENCES, min_size=1, max_size=4), st.lists(SENTENCES, min_size=1, max_size=4))
def test_agreement_is_the_formula(left: list[str], right: list[str]):
    expected = [[reference_agreement(a, b) for b in right] for a in left]
    np.testing.assert_allclose(agreement(left, right), expected, atol=1e-12)


@given(st.lists(SENTENCES, min_size=2, max_size=5, unique=True), st.data())
def test_consensus_is_the_weighted_mean_of_the_other_votes(voters: list[str], data: st.DataObject):
    similarities = [data.draw(st.floats(-1, 1)) for _ in voters]
    texts = [*voters, "something else"]
    scores = by_consensus(texts, np.zeros(len(texts), np.float32), evidence(*voters, similarities=similarities))
    weights = np.exp(np.array(similarities) / 0.1)
    for text, score in zip(texts, scores, strict=True):
        others = [i for i, voter in enumerate(voters) if voter != text]
        votes = [reference_agreement(text, voters[i]) for i in others]
        assert score == pytest.approx(np.average(votes, weights=weights[others]), abs=1e-9)


def test_consensus_prefers_what_most_say_and_what_nearer_captions_say():
    voters = ["a dog runs", "a dog runs fast", "a cat sleeps"]
    scores = by_consensus(voters, np.zeros(3, np.float32), evidence(*voters))
    assert scores.argmax() == 0
    nearest_cat = evidence("a dog", "a cat", similarities=[0.2, 0.6])
    scores = by_consensus(["one dog", "one cat"], np.zeros(2, np.float32), nearest_cat)
    assert scores[1] > scores[0]


def test_consensus_of_a_single_caption_is_defined():
    assert by_consensus(["a dog"], np.zeros(1, np.float32), evidence("a dog")).tolist() == [0.0]


def test_cosine_is_the_cosine():
    cosines = np.array([0.1, 0.7], np.float32)
    assert by_cosine(["x", "y"], cosines, []).tolist() == cosines.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        (" ... !", True),
        ("dog dog dog", True),
        ("a dog and a dog and a dog and a dog and a dog", True),
        ("A dog and a cat and a bird sit on a wall.", False),
        ("Hund", False),
        ("一只狗在草地上奔跑", False),
    ],
)
def test_degenerate(text: str, expected: bool):
    assert is_degenerate(text) is expected


def test_likelihood_weighs_cosine_against_natural_words_and_the_agreement_of_evidence_and_drafts():
    texts = ["a dog runs", "dog dog grass runs", "a retrieved dog"]
    cosines = np.array([0.5, 0.52, 0.6], np.float32)
    logprobs = np.array([-2.0, -40.0, np.nan])
    said = evidence("a puppy", "a dog on grass", similarities=[0.5, 0.45])
    natural = LIKELIHOOD_WEIGHT * np.array([-2 / 4, -40 / 5, UNWRITTEN_LOGPROB])
    natural += SENTENCE_WEIGHT * np.array([-2, LEAST_SENTENCE, 4 * UNWRITTEN_WORD])
    drafts = agreement(texts, texts[:2])
    echoed = ECHO_WEIGHT * np.array([drafts[0, 1], drafts[1, 0], drafts[2].mean()])
    agreed = AGREEMENT_WEIGHT * by_consensus(texts, cosines, said)
    doubtful = DOUBT_WEIGHT * doubts(texts, said)
    scores = by_likelihood(texts, cosines, said, logprobs)
    np.testing.assert_allclose(scores, cosines + natural + echoed + agreed - doubtful, rtol=1e-6)
    np.testing.assert_array_equal(by_likelihood(texts, cosines, []), cosines.astype(np.float64))


def test_a_single_draft_has_no_echo():
    np.testing.assert_array_equal(echoes(["a dog", "a cat"], ["a dog"]), [0, 0])


def test_a_thing_is_doubtful_as_far_as_the_nearer_captions_do_not_know_of_it():
    said = evidence("a beach", "a wave", "a dog on a beach", similarities=[0.6, 0.5, 0.4])
    weights = np.exp(np.array([0, -1, -2]))
    dog = weights[2] / weights.sum()
    texts = ["the sea", "a puppy", "a dog and a kite", "a kite and a kite", "skateboarding"]
    wanted = [0, SUPPORT - dog, SUPPORT - dog + SUPPORT, 2 * SUPPORT, 0]
    np.testing.assert_allclose(doubts(texts, said), wanted, atol=1e-9)
    supported = evidence("a dog", "a puppy and a cat", "a cat")
    np.testing.assert_array_equal(doubts(["a dog", "a cat and a dog"], supported), [0, 0])


def test_what_nobody_else_sees_loses_against_what_they_see():
    texts, cosines = ["a kite on a beach", "a beach by the sea"], np.array([0.55, 0.5], np.float32)
    scores = by_likelihood(texts, cosines, evidence("a sandy beach", "waves at a beach"), np.array([-4.0, -4.0]))
    assert scores.argmax() == 1


def test_candidates_are_ranked_by_the_rule_then_by_cosine_and_text():
    drafts = {"a cat": Draft("a cat", -2.0), "a dog": None, "a bat": None}
    ranked = Proposals(drafts, np.array([0.5, 0.25, 0.5], np.float32), (), np.ones(2)).ranked("cosine", pool=1)
    assert ranked == [
        Candidate("a bat", 0.5, 0.5, "retrieved"),
        Candidate("a cat", 0.5, 0.5, "lm", -2.0),
        Candidate("a dog", 0.25, 0.25, "retrieved"),
    ]


def test_each_candidate_is_gathered_once_and_none_is_degenerate():
    first, again = Draft("a dog", -1.0), Draft("a dog", -3.0)
    drafts, retrieved = [first, again, Draft("?!", -1.0)], evidence("a cat", "a dog")
    assert gather_candidates(drafts, retrieved, prefer_drafts=False) == {"a cat": None, "a dog": first}
    assert gather_candidates(drafts, retrieved, prefer_drafts=True) == {"a dog": first}
    assert gather_candidates([Draft("", 0.0)], retrieved, prefer_drafts=True) == {"a cat": None, "a dog": None}


VEGETABLES = evidence(*["a plate of vegetables with rice"] * 9, "a dish on a table")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("A plate of food with vegetables and a fish.", "A plate of food with vegetables."),
        ("A plate of vegetables sitting next to a phone", "A plate of vegetables"),
        ("A plate of vegetables with a fish in the background.", "A plate of vegetables."),
        ("A plate of vegetables on tables", "A plate of vegetables on tables"),
        ("A black and white plate", "A black and white plate"),
        ("A dog is on a sofa", "A dog is on a sofa"),
        ("A dog is wearing a hat.", "A dog."),
        ("A plate of food with rice - vegetables", "A plate of food with rice - vegetables"),
        ("A plate of food with rice/vegetables", "A plate of food with rice/vegetables"),
        ("A fish.", "A fish."),
        ("With a fish", "With a fish"),
        ("", ""),
    ],
)
def test_a_sentence_loses_ends_that_nothing_retrieved_supports(said: str, kept: str):
    assert shorten(said, VEGETABLES) == kept


def test_an_end_stays_where_enough_of_the_votes_know_it_and_an_unsure_caption_wants_more():
    assert shorten("a plate with a dish", VEGETABLES) == "a plate with a dish"
    assert shorten("a plate with a dish", VEGETABLES, 0.6) == "a plate with a dish"
    assert shorten("a plate with a dish", VEGETABLES, 0.4) == "a plate"
    rare = evidence(*["a plate of vegetables"] * 99, "a dish")
    assert shorten("a plate with a dish", rare) == "a plate"


def test_a_sentence_loses_an_end_that_goes_without_saying():
    cats = evidence("a close up of a cat with its eyes closed", "a cat with its head in a box")
    assert shorten("a close up of a cat with its eyes", cats) == "a close up of a cat"
    assert shorten("a cat with a head", cats) == "a cat"
    assert shorten("a cat and", cats) == "a cat"
    assert shorten("a cat with its eyes closed", cats) == "a cat with its eyes closed"
    assert shorten("a cat with its head in a box", cats) == "a cat with its head in a box"


ENDINGS = st.lists(
    st.sampled_from(["a", "and", "cat", "dog", "eyes", "is", "its", "on", "two", "with"]), min_size=1, max_size=9
).map(" ".join)


@given(SENTENCES | ENDINGS, st.lists(SENTENCES, min_size=1, max_size=4))
def test_what_is_left_of_a_sentence_is_its_beginning(said: str, retrieved: list[str]):
    kept = shorten(said, evidence(*retrieved))
    assert kept
    assert said.startswith(kept)
    assert shorten(kept, evidence(*retrieved)) == kept
