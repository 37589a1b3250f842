import json

import pytest

from recap.cli.options import print_json, printable


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
