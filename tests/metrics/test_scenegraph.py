"""Scene graphs from parses written down by hand, so that no model is needed; the real one is tried where it is."""

import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.assets import ASSETS, is_cached
from recap.errors import InputError, MissingExtraError
from recap.metrics.scenegraph import SceneGraph, SceneGraphParser, correct_verbs, default_parser, phrases, read_graph

spacy = pytest.importorskip("spacy")
from spacy.tokens import Doc  # noqa: E402

VOCAB = spacy.blank("en").vocab

# word|lemma|tag|part of speech|dependency|head
PARSES = {
    "a young girl standing on top of a tennis court": (
        "a|a|DT|DET|det|2 young|young|JJ|ADJ|amod|2 girl|girl|NN|NOUN|ROOT|2 standing|stand|VBG|VERB|acl|2 "
        "on|on|IN|ADP|prep|3 top|top|NN|NOUN|pobj|4 of|of|IN|ADP|prep|5 a|a|DT|DET|det|9 "
        "tennis|tennis|NN|NOUN|compound|9 court|court|NN|NOUN|pobj|6",
        # the example of the SPICE paper, with lemmas
        {
            ("girl",),
            ("court",),
            ("girl", "young"),
            ("girl", "stand"),
            ("court", "tennis"),
            ("girl", "on top of", "court"),
        },
    ),
    "a group of three dogs runs through the grass": (
        "a|a|DT|DET|det|1 group|group|NN|NOUN|nsubj|5 of|of|IN|ADP|prep|1 three|three|CD|NUM|nummod|4 "
        "dogs|dog|NNS|NOUN|pobj|2 runs|run|VBZ|VERB|ROOT|5 through|through|IN|ADP|prep|5 the|the|DT|DET|det|8 "
        "grass|grass|NN|NOUN|pobj|6",
        {("dog",), ("grass",), ("dog", "three"), ("dog", "run"), ("dog", "through", "grass")},
    ),
    "there are lots of boats in the middle of a harbor": (
        "there|there|EX|PRON|expl|1 are|be|VBP|VERB|ROOT|1 lots|lot|NNS|NOUN|attr|1 of|of|IN|ADP|prep|2 "
        "boats|boat|NNS|NOUN|pobj|3 in|in|IN|ADP|prep|4 the|the|DT|DET|det|7 middle|middle|NN|NOUN|pobj|5 "
        "of|of|IN|ADP|prep|7 a|a|DT|DET|det|10 harbor|harbor|NN|NOUN|pobj|8",
        {("boat",), ("harbor",), ("boat", "in middle of", "harbor")},
    ),
    "a man and a woman hold red and blue balloons": (
        "a|a|DT|DET|det|1 man|man|NN|NOUN|nsubj|5 and|and|CC|CCONJ|cc|1 a|a|DT|DET|det|4 woman|woman|NN|NOUN|conj|1 "
        "hold|hold|VBP|VERB|ROOT|5 red|red|JJ|ADJ|amod|9 and|and|CC|CCONJ|cc|6 blue|blue|JJ|ADJ|conj|6 "
        "balloons|balloon|NNS|NOUN|dobj|5",
        {
            *{("man",), ("woman",), ("balloon",), ("balloon", "red"), ("balloon", "blue")},
            *{("man", "hold", "balloon"), ("woman", "hold", "balloon")},
        },
    ),
    "a ball is thrown by a boy": (
        "a|a|DT|DET|det|1 ball|ball|NN|NOUN|nsubjpass|3 is|be|VBZ|AUX|auxpass|3 thrown|throw|VBN|VERB|ROOT|3 "
        "by|by|IN|ADP|agent|3 a|a|DT|DET|det|6 boy|boy|NN|NOUN|pobj|4",
        {("ball",), ("boy",), ("ball", "throw"), ("boy", "throw", "ball")},
    ),
    "the dog that chases its tail is brown": (
        "the|the|DT|DET|det|1 dog|dog|NN|NOUN|nsubj|6 that|that|WDT|PRON|nsubj|3 chases|chase|VBZ|VERB|relcl|1 "
        "its|its|PRP$|PRON|poss|5 tail|tail|NN|NOUN|dobj|3 is|be|VBZ|AUX|ROOT|6 brown|brown|JJ|ADJ|acomp|6",
        {("dog",), ("tail",), ("dog", "brown"), ("dog", "chase", "tail"), ("dog", "have", "tail")},
    ),
    "a boy 's hat lies on a chair": (
        "a|a|DT|DET|det|1 boy|boy|NN|NOUN|poss|3 's|'s|POS|PART|case|1 hat|hat|NN|NOUN|nsubj|4 "
        "lies|lie|VBZ|VERB|ROOT|4 on|on|IN|ADP|prep|4 a|a|DT|DET|det|7 chair|chair|NN|NOUN|pobj|5",
        {("boy",), ("hat",), ("chair",), ("hat", "lie"), ("boy", "have", "hat"), ("hat", "on", "chair")},
    ),
    "a cat sits next to 2 plates": (
        "a|a|DT|DET|det|1 cat|cat|NN|NOUN|nsubj|2 sits|sit|VBZ|VERB|ROOT|2 next|next|RB|ADV|advmod|2 "
        "to|to|IN|ADP|prep|3 2|2|CD|NUM|nummod|6 plates|plate|NNS|NOUN|pobj|4",
        {("cat",), ("plate",), ("cat", "sit"), ("plate", "two"), ("cat", "next to", "plate")},
    ),
    "a man sees that a girl is smiling and she holds her doll": (
        "a|a|DT|DET|det|1 man|man|NN|NOUN|nsubj|2 sees|see|VBZ|VERB|ROOT|2 that|that|IN|SCONJ|mark|7 "
        "a|a|DT|DET|det|5 girl|girl|NN|NOUN|nsubj|7 is|be|VBZ|AUX|aux|7 smiling|smile|VBG|VERB|ccomp|2 "
        "and|and|CC|CCONJ|cc|7 she|she|PRP|PRON|nsubj|10 holds|hold|VBZ|VERB|conj|7 her|her|PRP$|PRON|poss|12 "
        "doll|doll|NN|NOUN|dobj|10",
        {
            *{("man",), ("girl",), ("doll",), ("man", "see"), ("girl", "smile")},
            *{("girl", "hold", "doll"), ("girl", "have", "doll")},
        },
    ),
    "the child is a swimmer": (
        "the|the|DT|DET|det|1 child|child|NN|NOUN|nsubj|2 is|be|VBZ|AUX|ROOT|2 a|a|DT|DET|det|4 "
        "swimmer|swimmer|NN|NOUN|attr|2",
        {("child",), ("swimmer",), ("child", "be", "swimmer")},
    ),
}
BIRD = (
    "a|a|DT|DET|det|4 large|large|JJ|ADJ|amod|4 white|white|JJ|ADJ|amod|4 bird|bird|NN|NOUN|compound|4 "
    "swoops|swoop|NNS|NOUN|ROOT|4 over|over|IN|ADP|prep|4 water|water|NN|NOUN|pobj|5"
)
HELMET = (
    "a|a|DT|DET|det|1 man|man|NN|NOUN|ROOT|1 in|in|IN|ADP|prep|1 a|a|DT|DET|det|5 helmet|helmet|NN|NOUN|compound|5 "
    "climbs|climb|NNS|NOUN|pobj|2 up|up|IN|ADP|prep|5 stairs|stair|NNS|NOUN|pobj|6"
)
TAGS = {
    "NN": "NOUN",
    "NNS": "NOUN",
    "VBZ": "VERB",
    "VBN": "VERB",
    "JJ": "ADJ",
    "IN": "ADP",
    "WDT": "PRON",
    "PRP": "PRON",
}
ROLES = sorted({role for parse, _ in PARSES.values() for role in re.findall(r"\|(\w+)\|\d", parse)} - {"ROOT"})
WORDS = ["group", "of", "top", "a", "its", "that", "dog", "running", "they"]


def parsed(text):
    rows = [entry.split("|") for entry in text.split()]
    words, lemmas, tags, parts, deps, heads = map(list, zip(*rows, strict=True))
    return Doc(VOCAB, words=words, lemmas=lemmas, tags=tags, pos=parts, deps=deps, heads=[int(head) for head in heads])


@st.composite
def any_parse(draw):
    """Any tree with any labels: parsers make mistakes."""
    size = draw(st.integers(1, 9))
    words = draw(st.lists(st.sampled_from(WORDS), min_size=size, max_size=size))
    tags = draw(st.lists(st.sampled_from(sorted(TAGS)), min_size=size, max_size=size))
    heads = [0, *(draw(st.integers(0, index - 1)) for index in range(1, size))]
    deps = ["ROOT", *draw(st.lists(st.sampled_from(ROLES), min_size=size - 1, max_size=size - 1))]
    order = draw(st.permutations(range(size)))
    place = {old: new for new, old in enumerate(order)}
    return Doc(
        VOCAB,
        words=words,
        lemmas=words,
        tags=[tags[old] for old in order],
        pos=[TAGS[tags[old]] for old in order],
        deps=[deps[old] for old in order],
        heads=[place[heads[old]] for old in order],
    )


@pytest.mark.parametrize("caption", PARSES)
def test_the_tuples_of_a_caption(caption):
    parse, expected = PARSES[caption]
    graph = read_graph(parsed(parse))
    assert set(graph.tuples) == expected
    assert len(graph.tuples) == len(expected)


def test_a_verb_taken_for_a_plural_noun_is_found_out_by_its_article():
    doc = parsed(BIRD)
    correct_verbs(doc)
    assert set(read_graph(doc).tuples) == {
        *{("bird",), ("water",), ("bird", "large"), ("bird", "white")},
        *{("bird", "swoop"), ("bird", "over", "water")},
    }


def test_a_misread_verb_in_a_prepositional_phrase_goes_to_the_noun_above():
    doc = parsed(HELMET)
    correct_verbs(doc)
    graph = read_graph(doc)
    assert graph.objects == ("man", "helmet", "stair")
    assert set(graph.relations) == {("man", "in", "helmet"), ("man", "up", "stair")}
    assert graph.attributes == (("man", "climb"),)


def test_a_noun_in_ing_stays_one():
    doc = parsed("a|a|DT|DET|det|2 brick|brick|NN|NOUN|compound|2 building|building|NN|NOUN|ROOT|2")
    correct_verbs(doc)
    assert read_graph(doc).tuples == (("building",), ("building", "brick"))


@settings(max_examples=200, deadline=None)
@given(any_parse())
def test_any_parse_gives_a_graph_whose_ends_are_objects(doc):
    correct_verbs(doc)
    graph = read_graph(doc)
    known = set(graph.objects)
    assert {name for name, _ in graph.attributes} <= known
    assert {end for one, _, other in graph.relations for end in (one, other)} <= known
    assert len(set(graph.tuples)) == len(graph.tuples)


def test_phrases_are_the_graph_in_words():
    graph = SceneGraph(("dog", "grass"), (("dog", "brown"),), (("dog", "on", "grass"),))
    assert graph.phrases == ("dog", "grass", "brown dog", "dog on grass")


def test_without_spacy_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingExtraError, match="spice"):
        SceneGraphParser(tmp_path)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(InputError, match=str(tmp_path)):
        SceneGraphParser(tmp_path)


def test_a_model_that_cannot_parse_is_refused(tmp_path):
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(InputError, match="tagger, parser"):
        SceneGraphParser(tmp_path / "blank")


@pytest.mark.skipif("spacy-english" not in ASSETS or not is_cached("spacy-english"), reason="the model is not here")
def test_the_model_reads_captions_once_each_whatever_their_case():
    one, other = default_parser().parse(["A brown dog sits on  the grass.", "a brown dog sits on the grass."])
    assert one == other == SceneGraph(("dog", "grass"), (("dog", "brown"), ("dog", "sit")), (("dog", "on", "grass"),))
    assert phrases(["", "two cats"]) == [(), ("cat", "two cat")]
