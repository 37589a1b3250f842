from recap.cli.options import shown


def test_captions_cannot_command_a_terminal():
    assert shown("a \x1b]0;owned\x07wall\x9b31m\r\n") == "a �]0;owned�wall�31m�\n"
    assert shown("ein Bär\t日本") == "ein Bär\t日本"
