import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.errors import AssetError
from recap.language.words import (
    EITHER,
    HINTS,
    THINGS,
    Phrases,
    attribute,
    join_words,
    named,
    often_written,
    same_word,
    shown,
    surface_words,
    triples_of,
    words,
)
from recap.types import Candidate, Caption, Evidence


def test_words_of_several_scripts():
    assert words("The Dog's red-brown BALL, ’tis.") == ("the", "dog's", "red-brown", "ball", "tis")
    assert words("Ein großer Hund") == ("ein", "grosser", "hund")
    assert words("狗 runs") == ("狗", "runs")
    assert words("빨간 공을 든 개") == ("빨간", "공을", "든", "개")
    assert surface_words("In Paris, a T-shirt!") == ["In", "Paris", "a", "T-shirt"]


def test_words_become_a_text_again():
    assert join_words(["a", "red", "t-shirt"]) == "a red t-shirt"
    assert join_words(["犬", "が", "2", "いる"]) == "犬が 2 いる"
    assert join_words(surface_words("빨간 공을 든 개")) == "빨간 공을 든 개"


def caption(text: str, *evidence: tuple[str, float], candidates: tuple[Candidate, ...] = ()) -> Caption:
    return Caption(text, 0.5, tuple(Evidence(*item) for item in evidence), candidates, "consensus")


def test_words_come_from_the_captions_that_have_them():
    result = attribute(caption("A Dog chases a frisbee.", ("two dogs run", 0.5), ("a cat", 0.4), ("the dog", 0.5)))
    assert [(word.text, word.kind) for word in result.words] == [
        ("A", "common"),
        ("Dog", "evidence"),
        ("chases", "nowhere"),
        ("a", "common"),
        ("frisbee", "nowhere"),
    ]
    dog = result.words[1]
    assert [source.evidence for source in dog.sources] == [0, 2]
    assert [source.share for source in dog.sources] == pytest.approx([0.5, 0.5])
    assert dog.support == pytest.approx(2 / (2 + math.exp(-1)))
    assert result.unsupported == ("chases", "frisbee")


def test_nearer_captions_and_shared_neighbours_count_more():
    near = attribute(caption("dog", ("a dog", 0.6), ("the dog", 0.5))).words[0]
    assert near.sources[0].share / near.sources[1].share == pytest.approx(math.e)
    beside = attribute(caption("a red car", ("a red ball", 0.5), ("one red car", 0.5), ("red", 0.5))).words[1]
    assert [(s.evidence, s.share) for s in beside.sources] == [
        (0, pytest.approx(0.4)),
        (1, pytest.approx(0.4)),
        (2, pytest.approx(0.2)),
    ]


def test_a_retrieved_caption_that_is_not_among_the_evidence_is_a_source_too():
    chosen = Candidate("a horse", 0.9, 0.4, "retrieved")
    written = Candidate("a zebra", 0.8, 0.4, "lm")
    result = attribute(caption("a horse", ("a dog", 0.5), candidates=(chosen, written)))
    assert [item.text for item in result.evidence] == ["a dog", "a horse"]
    assert result.words[1].sources[0].evidence == 1
    assert attribute(caption("a zebra", ("a dog", 0.5), candidates=(chosen, written))).unsupported == ("zebra",)


def test_without_evidence_every_word_is_from_nowhere():
    assert attribute(caption("red wall")).unsupported == ("red", "wall")
    assert attribute(caption("")).words == ()


def test_other_languages_bring_their_own_common_words():
    result = attribute(caption("ein Hund", ("der Hund", 0.5)), common_words={"ein", "der"})
    assert [word.kind for word in result.words] == ["common", "evidence"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("dog", "dogs"), ("bus", "buses"), ("puppy", "puppies"), ("run", "running"), ("ride", "riding")],
        *[("dog's", "dog"), ("jump", "jumped"), ("stand", "standing"), ("stands", "standing")],
    ],
)
def test_endings(one: str, other: str):
    assert same_word(one, other)
    assert same_word(other, one)


@pytest.mark.parametrize(
    ("one", "other"), [("dog", "dig"), ("red", "r"), ("string", "str"), ("car", "cart"), ("s", "")]
)
def test_other_words_are_not_the_same(one: str, other: str):
    assert not same_word(one, other)


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        *[
            ("de", "hunde", "hunden"),
            ("de-AT", "haus", "hause"),
            ("fr", "chien", "chiens"),
            ("es", "perro", "perros"),
        ],
        *[("it", "gatto", "gatti"), ("nl", "hond", "honden"), ("pt-BR", "cachorro", "cachorros")],
        *[("ru", "собака", "собаки"), ("sv", "hund", "hundar"), ("tr", "köpek", "köpekler")],
    ],
)
def test_endings_of_other_languages(language: str, one: str, other: str):
    assert same_word(one, other, language)
    assert not same_word(one, "zug", language)


def test_words_of_languages_without_endings_are_compared_as_they_are():
    assert same_word("개", "개", "ko")
    assert not same_word("dog", "dogs", "ja")


def test_words_are_attributed_by_the_endings_of_their_language():
    german = caption("Hunde am Strand", ("zwei Hunden wird warm", 0.5))
    assert attribute(german, common_words=(), language="de").unsupported == ("am", "Strand")
    assert attribute(german, common_words=()).unsupported == ("Hunde", "am", "Strand")


TEXTS = st.text(st.sampled_from("ab ,.-'ß日İ"), max_size=12)


@given(TEXTS, st.lists(st.tuples(TEXTS, st.floats(-1, 1)), max_size=5))
def test_places_shares_and_support_fit(text: str, evidence: list[tuple[str, float]]):
    result = attribute(caption(text, *evidence), common_words=())
    end = 0
    for word in result.words:
        assert text[word.start : word.end] == word.text
        assert word.start >= end
        end = word.end
        if word.kind == "evidence":
            assert math.fsum(source.share for source in word.sources) == pytest.approx(1)
            assert 0 < word.support <= 1 + 1e-9
            assert all(0 <= source.evidence < len(evidence) for source in word.sources)
        else:
            assert word.sources == ()
            assert not any(word.text.casefold() in item[0].casefold().split() for item in evidence)


def kinds(text: str) -> list[str]:
    return [kinds[0] for kinds in named(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A man eats a hot dog.", ["person", "hot dog"]),
        ("Two hot-dogs and a dog", ["hot dog", "dog"]),
        ("teddy bears on a bed", ["teddy bear", "bed"]),
        ("a bear on a bed of leaves", ["bear"]),
        ("a cell phone, a wine glass and a hair dryer", ["cell phone", "wine glass", "hair drier"]),
        ("Women, children and mice", ["person", "person", "mouse"]),
        ("knives, calves, benches, buses, puppies, sandwiches", ["knife", "cow", "bench", "bus", "dog", "sandwich"]),
        ("sheep and skis and scissors", ["sheep", "skis", "scissors"]),
        ("a woman's purse", ["person", "handbag"]),
        ("a catcher’s mitt", ["baseball glove"]),
        ("a couple of birds", ["bird"]),
        ("a couple on a sofa", ["person", "couch"]),
        ("a baby elephant and its mother", ["elephant", "person"]),
        ("a passenger train at a train station", ["train"]),
        ("passengers on a train", ["person", "train"]),
        ("a toilet paper roll beside a bus stop", []),
        ("an orange cat", ["cat"]),
        ("an orange and white cat", ["cat"]),
        ("a man in orange", ["person"]),
        ("an orange on a plate", ["orange"]),
        ("an orange and a banana", ["banana", "orange"]),
        ("sliced oranges", ["orange"]),
        ("a caterpillar, a carpet, a scarf, a busy street", []),
        ("A MAN", ["person"]),
        ("", []),
    ],
)
def test_things_are_found_by_their_names(text: str, expected: list[str]):
    assert kinds(text) == expected


def test_a_hint_shows_a_thing_without_naming_it():
    assert named("skateboarding in a park") == ()
    assert shown("skateboarding in a park") == {"person", "skateboard"}
    assert shown("a puppy on a couch") == {"dog", "couch"}


def test_the_table_is_whole():
    assert len(THINGS) == 80
    listed = [word for words in THINGS.values() for word in words.split(", ")]
    assert len(listed) == len(set(listed))
    for named_kinds in (*EITHER.values(), *HINTS.values()):
        assert set(named_kinds.split(", ")) <= THINGS.keys()
    for kind in THINGS.keys() - {"orange"}:
        assert kinds(f"a {kind}") == [kind]


TRIPLES = st.lists(st.tuples(*[st.integers(0, 20_000)] * 3), min_size=1, max_size=200)


@given(TRIPLES)
def test_no_phrase_is_forgotten(triples: list[tuple[int, int, int]]):
    assert Phrases.of(triples, bits=1 << 16).have(triples).all()


def test_few_others_are_taken_for_one():
    random = np.random.default_rng(0)
    kept, others = random.integers(0, 10_000, (400_000, 3)), random.integers(0, 10_000, (100_000, 3))
    phrases = Phrases.of(kept)
    assert phrases.have(kept).all()
    assert phrases.have(others).mean() < 0.004
    assert phrases.have(kept[:, ::-1]).mean() < 0.004  # the order of words counts
    assert not Phrases.of(np.empty((0, 3))).have(others).any()


def test_phrases_are_read_as_they_were_written(tmp_path: Path):
    phrases = Phrases.of([(1, 2, 3)], bits=1 << 10)
    phrases.save(tmp_path / "p.bin")
    assert Phrases.load(tmp_path / "p.bin").have([(1, 2, 3), (3, 2, 1)]).tolist() == [True, False]
    (tmp_path / "p.bin").write_bytes(b"")
    with pytest.raises(AssetError, match="install recap again"):
        Phrases.load(tmp_path / "p.bin")
    with pytest.raises(AssetError, match="install recap again"):
        Phrases.load(tmp_path / "nothing.bin")


def test_triples_run_from_the_beginning_to_the_end():
    assert triples_of([7, 8], 1, 2) == [(1, 7, 8), (7, 8, 2)]
    assert triples_of([], 1, 2) == []
    assert often_written([[7, 8], [7, 8, 9], [7, 8], [7, 8]], 1, 2) == [(1, 7, 8), (7, 8, 2)]
