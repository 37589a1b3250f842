import json
from pathlib import Path

import click
import pytest

from recap.cli.options import combine, find_pictures, print_json, printable


def test_captions_cannot_command_a_terminal():
    assert printable("a \x1b]0;owned\x07wall\x9b31m\r\n") == "a �]0;owned�wall�31m� "
    assert printable("nice\nfake.jpg\tfake") == "nice fake.jpg fake", "a caption is one column of one line"
    assert printable("\u202egnp.exe\u2028") == "�gnp.exe�"
    assert printable("ein Bär 日本") == "ein Bär 日本"


def test_json_controls_no_terminal_and_says_the_same(capsys: pytest.CaptureFixture[str]):
    value = {"caption": "\x1b[2J\x9b31m\u202e\x7f Bär\n\t"}
    print_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert "Bär" in text
    assert not {"\x1b", "\x9b", "\u202e", "\x7f"} & set(text)


def test_pictures_are_found_and_a_missing_one_among_others_is_left_to_the_run(tmp_path: Path):
    for name in ("b.png", "a.jpg", "film.mp4", "notes.txt"):
        (tmp_path / name).touch()
    gone = str(tmp_path / "gone.png")
    pictures = [str(tmp_path / "a.jpg"), str(tmp_path / "b.png")]
    assert find_pictures((str(tmp_path), gone)) == [*pictures, gone]
    assert find_pictures((str(tmp_path),), videos=True) == [*pictures, str(tmp_path / "film.mp4")]
    with pytest.raises(click.UsageError, match=r"gone\.png: there is no such file \(nor the others\)"):
        find_pictures((gone, "elsewhere.png"))


def test_options_are_combined_in_their_order():
    @click.command()
    @combine(click.option("--first"), click.option("--second"))
    def command(first: str, second: str) -> None: ...

    assert [option.name for option in command.params] == ["first", "second"]
