from pathlib import Path

import pytest

from recap import errors


def test_an_optional_part_is_installed_from_the_clone_that_is_run():
    root = Path(__file__).parents[1]
    assert errors.install_command("serve") == f"pip install '{root}[serve]'"
    assert f"'{root}[serve]'" in str(errors.MissingExtraError("recap serve", "serve"))


def test_elsewhere_it_comes_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "somebody-elses"\n')
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "lib" / "recap" / "errors.py"))
    assert errors.install_command("serve") == "pip install 'recap-captioner[serve]'"
