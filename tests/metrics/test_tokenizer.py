import json
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.metrics import tokenize
from recap.metrics.tokenizer import encode, tokenize_span

SAMPLE = json.loads((Path(__file__).parent / "ptb_sample.json").read_text(encoding="utf-8"))

PIECES = (
    "a|The|dog|K.|I.|st.|no.|5|22|3/4|(555)|123-4567|don't|man's|'n'|.|...|,|!|!!|\"x\"|<|<b>|>|é|😀|cannot|1.|x.y|U.S.|"
    "black-and-white|:)|$5|&|a&b|A&B|etc.|'|’s||.5|i'80st."
)
FRAGMENTS = st.sampled_from(PIECES.split("|"))
CAPTIONS = st.lists(st.lists(FRAGMENTS, max_size=8).map(" ".join), min_size=1, max_size=5)


def test_the_recorded_output_of_the_java_tokenizer_is_reproduced():
    # recorded in this order: some tokens depend on the next line
    tokens = [" ".join(words) for words in tokenize(SAMPLE["captions"])]
    assert len(tokens) > 400
    assert tokens == SAMPLE["tokens"]


@settings(deadline=None)
@given(CAPTIONS)
def test_the_fast_path_finds_what_a_walk_through_the_text_finds(captions):
    lines = [caption.replace("\t", " ") for caption in captions]
    text = "\n".join(lines)
    starts = accumulate((len(line) + 1 for line in lines), initial=0)
    walked = [tokenize_span(text, start, start + len(line)) for start, line in zip(starts, lines, strict=False)]
    assert tokenize(lines) == walked


@settings(deadline=None)
@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_text_gives_one_list_a_caption_without_spaces_in_tokens(captions):
    tokens = tokenize(captions)
    assert len(tokens) == len(captions)
    assert all(token and " " not in token and "\n" not in token for caption in tokens for token in caption)


def test_a_stop_after_a_letter_depends_on_the_next_caption():
    assert tokenize(["letter K.", "The cat runs"])[0] == ["letter", "k"]
    assert tokenize(["letter K.", "the cat runs"])[0] == ["letter", "k."]


@pytest.mark.parametrize("broken", ["a dog\nruns", "a dog\r\nruns", "a dog\u2028runs", "a dog\x0bruns", "a dog\0runs"])
def test_a_line_break_inside_a_caption_is_a_space(broken):
    assert tokenize([broken, "next"]) == [["a", "dog", "runs"], ["next"]]


def test_tokens_need_no_pandas():
    program = (
        "import sys; from recap.metrics import tokenize; tokenize(['ein Bär', '']); print('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_soft_hyphens_vanish():
    assert tokenize(["extra\xadordinary"]) == [["extraordinary"]]


def test_no_captions():
    assert tokenize([]) == []
    assert tokenize(["", "a", ""]) == [[], ["a"], []]


def test_numbers_continue_a_given_vocabulary():
    vocabulary = {"dog": 0}
    sentences = encode(["a dog", "", "a cat."], vocabulary)
    assert vocabulary == {"dog": 0, "a": 1, "cat": 2} or set(vocabulary.values()) == {0, 1, 2}
    names = {number: word for word, number in vocabulary.items()}
    assert [names[word] for word in sentences.words.tolist()] == ["a", "dog", "a", "cat"]
    assert sentences.offsets.tolist() == [0, 2, 2, 4]
