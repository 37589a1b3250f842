from recap.cli.options import printable


def test_captions_cannot_command_a_terminal():
    assert printable("a \x1b]0;owned\x07wall\x9b31m\r\n") == "a �]0;owned�wall�31m�\n"
    assert printable("ein Bär\t日本") == "ein Bär\t日本"
