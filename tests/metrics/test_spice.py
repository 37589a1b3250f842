"""SPICE-py from scene graphs made by hand."""

import zipfile
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.errors import InputError
from recap.metrics import chair, evaluate
from recap.metrics.corpus import MetricWarning
from recap.metrics.scenegraph import SceneGraph, Synonyms
from recap.metrics.spice import invented, mean_best_cosine, score_graphs, soft_spice, spice

SYNONYMS = Synonyms(
    {
        "kid": frozenset("1"),
        "child": frozenset("12"),
        "boy": frozenset("2"),
        "little": frozenset("3"),
        "small": frozenset("3"),
    }
)
NAMES = st.sampled_from(["kid", "child", "boy", "dog"])
GRAPHS = st.builds(
    lambda attributes, relations, more: SceneGraph(
        tuple(dict.fromkeys([*more, *(a for a, _ in attributes), *(e for a, _, b in relations for e in (a, b))])),
        tuple(attributes),
        tuple(relations),
    ),
    st.lists(st.tuples(NAMES, st.sampled_from(["little", "small", "red", "two"])), max_size=3, unique=True),
    st.lists(st.tuples(NAMES, st.sampled_from(["on", "see"]), NAMES), max_size=2, unique=True),
    st.lists(NAMES, max_size=2, unique=True),
)


class Reader:
    """Stands in for the parser: each caption names the graph it has."""

    def __init__(self, graphs):
        self.graphs = graphs

    def parse(self, captions, *, progress=False):
        return [self.graphs[caption] for caption in captions]


def brute_force(candidate, references):
    """F1 by comparing every tuple with every other."""

    def same(one, other):
        return len(one) == len(other) and all(map(SYNONYMS.match, one, other))

    pool = []
    for entry in (entry for graph in references for entry in graph.tuples):
        if not any(same(entry, known) for known in pool):
            pool.append(entry)
    if not candidate.tuples and not pool:
        return 0.0
    matched = sum(any(same(entry, known) for known in pool) for entry in candidate.tuples)
    return 2 * matched / (len(candidate.tuples) + len(pool))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(GRAPHS, st.lists(GRAPHS, min_size=1, max_size=3)), min_size=1, max_size=3))
@pytest.mark.filterwarnings("ignore::recap.metrics.corpus.MetricWarning")
def test_scores_equal_brute_force(images):
    candidates, references = zip(*images, strict=True)
    result = score_graphs(candidates, references, range(len(images)), synonyms=SYNONYMS)
    expected = [brute_force(*image) for image in images]
    np.testing.assert_allclose(result.per_image, expected, rtol=0, atol=1e-15)
    assert result.value == pytest.approx(np.mean(expected))
    assert result.name == "SPICE-py"


def test_a_worked_example_with_its_breakdown():
    candidate = SceneGraph(("child", "ball"), (("child", "small"), ("ball", "red")), (("child", "hold", "ball"),))
    one = SceneGraph(("kid", "ball"), (("kid", "little"),), (("kid", "hold", "ball"),))
    two = SceneGraph(("child", "ball", "grass"), (("child", "two"),), (("child", "on", "grass"),))
    result = score_graphs([candidate], [[one, two]], [0], synonyms=SYNONYMS)
    # pooled: kid, ball, grass, kid little, child two, kid hold ball, child on grass; matched: all but ball red
    assert result.value == pytest.approx(2 * 4 / (5 + 7))
    assert np.isnan(result.standard_error)
    figures = {kind: part.value for kind, part in result.breakdown.items()}
    expected = {"object": 4 / 5, "attribute": 2 / 4, "relation": 2 / 3, "colour": 0.0, "count": 0.0, "size": 1.0}
    assert figures == pytest.approx(expected)


def test_a_kind_nobody_uses_is_left_out_of_its_mean():
    dog, red = SceneGraph(("dog",)), SceneGraph(("dog",), (("dog", "red"),))
    part = score_graphs([dog, red], [[dog], [red]], [0, 1], synonyms=SYNONYMS).breakdown["colour"]
    assert np.isnan(part.per_image[0])
    assert part.value == 1.0


def test_candidates_without_a_tuple_are_counted():
    dog = SceneGraph(("dog",))
    with pytest.warns(MetricWarning, match="1 of 2"):
        result = score_graphs([dog, SceneGraph()], [[dog], [dog]], [0, 1], synonyms=SYNONYMS)
    assert result.per_image.tolist() == [1.0, 0.0]


def test_several_candidates_may_share_an_image():
    reader = Reader({"a": SceneGraph(("dog",)), "b": SceneGraph(("cat",)), "c": SceneGraph(("boy",))})
    result = spice(["a", "b", "c"], [["b"], ["a", "c"]], [1, 0, 0], parser=reader, synonyms=SYNONYMS)
    np.testing.assert_allclose(result.per_image, [2 / 3, 1, 0])


@pytest.mark.parametrize(
    ("candidates", "references", "index", "message"),
    [
        ("a dog", [["a dog"]], None, "list"),
        ([], [["a"]], None, "at least one"),
        (["a"], ["a dog"], None, "is a string"),
        (["a", "b"], [["a"], []], None, "image 1"),
        (["a"], [["a"], ["b"]], None, "1 candidates"),
        (["a"], [["a"]], [1], "between 0 and 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(candidates, references, index, message):
    with pytest.raises(InputError, match=message):
        spice(candidates, references, index, parser=Reader({}), synonyms=SYNONYMS)


def test_words_match_by_equality_or_a_common_synset():
    words = ["kid", "child", "boy", "unknown"]
    matches = {(a, b) for a, b in product(words, words) if SYNONYMS.match(a, b)}
    pairs = {("kid", "child"), ("child", "boy")}
    assert matches == {(word, word) for word in words} | pairs | {(b, a) for a, b in pairs}


def test_a_synset_file_is_read_and_a_broken_one_refused(tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("table_tennis\n7 8\nping-pong\n8\n", "utf-8")
    bad.write_text("dog\n", "utf-8")
    assert Synonyms.read(good).match("table tennis", "ping-pong")
    with pytest.raises(InputError, match=str(bad)):
        Synonyms.read(bad)


def test_the_synsets_inside_meteor(tmp_path):
    package = pytest.importorskip("pycocoevalcap")
    jar = Path(package.__path__[0], "meteor", "meteor-1.5.jar")
    with zipfile.ZipFile(jar) as archive:
        synonyms = Synonyms.read(Path(archive.extract("synonym/english.synsets", tmp_path)))
    assert synonyms.match("kid", "child")
    assert synonyms.match("sofa", "couch")
    assert not synonyms.match("man", "woman")


def test_mean_over_candidate_phrases_of_the_best_match(toy):
    candidates = [["red", "blue box"], ["green"], [], ["red"]]
    references = [["red", "green"], ["white", "blue"], ["red"], []]
    result = soft_spice(candidates, references, toy)
    v = toy.vector
    first = np.mean([max(v(mine) @ v(other) for other in references[0]) for mine in candidates[0]])
    second = max(v("green") @ v("white"), v("green") @ v("blue"))
    np.testing.assert_allclose(result.per_image, [first, second, 0, 0], atol=1e-6)
    assert result.value == pytest.approx(np.mean([first, second, 0, 0]))
    assert result.name == "SoftSPICE"
    assert len(toy.seen_texts) == len(set(toy.seen_texts)) == 5


def test_a_candidate_is_judged_by_its_own_phrases_only():
    references = np.eye(3, dtype=np.float32)
    assert mean_best_cosine(references[:1], references) == 1
    assert mean_best_cosine(references, references[:1]) == pytest.approx(1 / 3)


def test_lengths_must_agree(toy):
    with pytest.raises(InputError):
        soft_spice([["red"]], [], toy)
    assert soft_spice([[]], [[]], toy).value == 0


@pytest.mark.parametrize(
    ("candidate", "references", "expected"),
    [
        ("a dog on a sofa", ["a puppy sleeps on the couch"], []),
        ("a dog on a sofa", ["a hot dog on the couch"], ["dog"]),
        ("a dog and a dog and a cat", ["a wall"], ["dog", "cat"]),
        ("a man on a bike", ["a motorcyclist on his motorcycle"], []),
        ("a man on a bicycle", ["a man on his bike"], []),
        ("a man on a motorcycle", ["a man on his bicycle"], ["motorcycle"]),
        ("a van on a street", ["a white truck"], []),
        ("a man on a skateboard", ["skateboarding in a park"], []),
        ("a purse", ["a bag"], []),
        ("a bag", ["a wall"], []),
        ("people in a room", ["an empty room", "a room with chairs"], ["person"]),
        ("a kite over a beach", ["a beach", "the sea"], ["kite"]),
        ("oranges", ["orange fruit in a bowl"], []),
    ],
)
def test_what_no_reference_names_is_invented(candidate: str, references: list[str], expected: list[str]):
    assert invented(candidate, references) == expected


def test_the_metric_is_the_share_of_captions_that_invent():
    candidates = ["a dog", "a cat and a horse", "a wall"]
    references = [["a puppy"], ["a wall"], ["a wall"]]
    result = chair(candidates, references)
    assert result.per_image.tolist() == [0, 1, 0]
    assert result.value == pytest.approx(1 / 3)
    assert chair(["a dog", "a cat"], references, [1, 0]).value == 1
    assert evaluate(candidates, references, metrics="chair")["CHAIR"].value == result.value
    with pytest.raises(InputError, match="3 candidates but references of 2"):
        chair(candidates, references[:2])
