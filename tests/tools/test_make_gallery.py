import re
import sys
from pathlib import Path

import pytest

from recap.types import Caption

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gallery(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import make_gallery

    yield make_gallery
    sys.modules.pop("make_gallery", None)


def test_a_verdict_stays_as_long_as_its_caption(gallery):
    def page(cat: str, verdicts: dict[tuple[str, str], str]) -> str:
        captions = {
            "cat": Caption(cat, 0.5, (), (), "likely", 0.4),
            "moon": Caption("a moon", 0.5, (), (), "likely", 0.9),
        }
        return gallery.render(captions, verdicts)

    first = page("a cat", {})
    assert first.count("| not judged |") == 2
    assert "| a cat | 40%, unsure |" in first
    judged = gallery.read_verdicts(first.replace("not judged", "wrong", 1))
    assert judged[("cat", "a cat")] == "wrong"
    assert "| a cat | 40%, unsure | wrong |" in page("a cat", judged)
    assert page("a dog", judged).count("| not judged |") == 2


def test_the_page_shows_every_picture_with_its_licence_and_what_is_wrong(gallery):
    page = gallery.PAGE.read_text(encoding="utf-8")
    shown = gallery.read_verdicts(page)
    assert {name for name, _ in shown} == set(gallery.SOURCES) == {path.stem for path in gallery.PICTURES.iterdir()}
    assert len(shown) == 12
    assert {*shown.values()} <= {"right", "partly", "wrong", gallery.UNJUDGED}
    assert all(re.search(rf"`{name}\.jpg`: .*(CC0|CC BY|domain|restrictions)", page) for name in gallery.SOURCES)
