import io

from rich.console import Console

from recap.cli.terminal import print_explanation
from recap.types import Candidate, Caption, Evidence

EVIDENCE = (
    Evidence("the dog runs", 0.5, "coco"),
    Evidence("nothing alike", 0.49),
    Evidence("on a beach", 0.4, synthetic=True),
)


def shown(caption: Caption, path: str = "a.jpg", *, colour: bool = False) -> str:
    out = io.StringIO()
    system = "standard" if colour else None
    print_explanation(path, caption, Console(file=out, width=200, force_terminal=colour, color_system=system))
    return out.getvalue()


def test_words_have_the_number_of_the_caption_they_owe_most_to():
    text = "a dog on a beach surfing"
    caption = Caption(text, 0.42, EVIDENCE, (Candidate(text, 0.3, 0.42, "lm"),), "cosine", 0.61)
    lines = shown(caption).splitlines()
    assert lines[1].strip() == "a dog¹ on a beach² surfing?"
    assert "61% sure, aligned cosine 0.42, chosen as the nearest to the picture" in lines[2]
    assert "in none of the retrieved captions: surfing" in lines[3]
    assert lines[4].split() == ["evidence", "0.50", "━━━━━━━━", "1", "the", "dog", "runs", "(coco)"]
    assert lines[6].endswith("2 on a beach  (machine-written)")
    assert lines[7].endswith(f"{text}  (by the model)")


def test_colours_are_used_where_there_are_any():
    caption = Caption("a dog", 0.42, EVIDENCE, (), "cosine")
    assert "\x1b[1;36mdog" in shown(caption, colour=True)
    assert "\x1b" not in shown(caption)


def test_texts_cannot_steer_the_terminal():
    hostile = "a \x1b]0;owned\x07dog [red]x[/red]\r"
    caption = Caption(hostile, 0.4, (Evidence(hostile, 0.5, hostile),), (Candidate(hostile, 1.0, 0.4, "lm"),), "cosine")
    text = shown(caption, path=hostile)
    assert not {"\x1b", "\x07", "\r"} & set(text)
    assert "[red]" in text


def test_an_unsure_caption_has_a_mark_and_a_word():
    for confidence, mark in ((0.49, "? unsure: "), (0.5, ""), (None, "")):
        caption = Caption("a dog", 0.42, EVIDENCE, (), "cosine", confidence)
        assert shown(caption).splitlines()[1] == f"  {mark}a dog¹"
