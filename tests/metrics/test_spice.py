"""SPICE-py from scene graphs made by hand."""

import zipfile
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.errors import InputError
from recap.metrics.scenegraph import SceneGraph, Synonyms
from recap.metrics.spice import image_numbers, score_graphs, spice
from recap.metrics.statistics import MetricWarning

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

    def parse(self, captions):
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
@pytest.mark.filterwarnings("ignore::recap.metrics.statistics.MetricWarning")
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
        ([], [], None, "at least one"),
        (["a"], ["a dog"], None, "image 0"),
        (["a", "b"], [["a"], []], None, "image 1"),
        (["a"], [["a"], ["b"]], None, "1 candidates"),
        (["a"], [["a"]], [1], "between 0 and 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(candidates, references, index, message):
    with pytest.raises(InputError, match=message):
        image_numbers(candidates, references, index)


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
