import base64
import hashlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from recap.batch.report import HtmlReport, card
from recap.errors import InputError
from recap.types import Candidate, Caption, Evidence

HOSTILE = """</h2><script>alert(1)</script><img src=x onerror=alert(2)>"'&amp;\u202e\x1b[31m"""


def caption(text: str = "a red wall", confidence: float | None = 0.83, source: str = "walls") -> Caption:
    evidence = (Evidence("the wall is red", 0.5, source), Evidence("two walls", 0.4, "others", synthetic=True))
    candidates = (Candidate(text, 0.31, 0.45, "lm", -1.0), Candidate("the wall is red", 0.2, 0.5, "retrieved"))
    return Caption(text, 0.45, evidence, candidates, "consensus", confidence)


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return "".join(self.texts)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.new("RGB", (800, 600), "red").save(tmp_path / "a b.jpg")
    return tmp_path / "a b.jpg"


def written(folder: Path, picture: Path, **options: object) -> Elements:
    with HtmlReport(folder / "report.html", title="Walls & more") as report:
        report.add(picture, caption(**options))
    return Elements((folder / "report.html").read_text(encoding="utf-8"))


def test_everything_about_a_caption_is_on_the_page(tmp_path: Path, picture: Path):
    page = written(tmp_path, picture)
    for said in ("Walls & more", "a red wall", "83% sure", "aligned cosine 0.45", "evidence agrees on", "walls"):
        assert said in page.text
    for said in ("the wall is red", "two walls", "others (machine)", "0.50", "0.40", "0.31", "language model"):
        assert said in page.text
    assert "sure" not in written(tmp_path, picture, confidence=None).text.split("Retrieved")[0].split("surest first")[1]


def test_an_unsure_caption_has_a_mark_and_a_word(tmp_path: Path, picture: Path):
    for confidence, marked in ((0.49, True), (0.5, False), (None, False)):
        page = written(tmp_path, picture, confidence=confidence)
        assert ("? Unsure a red wall" in page.text) == marked
        assert any(chip["class"] == "chip low" for chip in page.all("span") if "class" in chip) == marked
    held = card("a.jpg", "a.jpg", None, caption(confidence=0.1), withheld=True)
    assert "Withheld" in held
    assert "Unsure" not in held


def test_words_name_the_captions_they_come_from(tmp_path: Path, picture: Path):
    words = {w["data-n"]: w for w in written(tmp_path, picture, text="a red wall melts").all("span") if "data-n" in w}
    assert words["1"]["data-from"] == "0"
    assert words["2"]["data-from"] == "0 1"
    assert "data-from" not in words["3"]
    assert words["3"]["class"] == "w none"


def test_the_picture_is_inside_and_small(tmp_path: Path, picture: Path):
    page = written(tmp_path, picture)
    (image,) = page.all("img")
    kind, data = str(image["src"]).split(",", 1)
    assert kind == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as thumbnail:
        assert thumbnail.size == (360, 270)
        assert (str(thumbnail.width), str(thumbnail.height)) == (image["width"], image["height"])
    assert image["loading"] == "lazy"


def test_nothing_is_loaded_from_elsewhere_and_one_script_runs(tmp_path: Path, picture: Path):
    written(tmp_path, picture)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|url\(", page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_hostile_captions_and_names_stay_text(tmp_path: Path):
    folder = tmp_path / "<b onmouseover=alert(1)>"
    folder.mkdir()
    name = folder / "javascript:alert(1)\"'><img src=x>.png"
    Image.new("RGB", (9, 9)).save(name.with_name("x.png"))
    name.write_bytes(name.with_name("x.png").read_bytes())
    evidence = (Evidence(HOSTILE, 0.5, HOSTILE, synthetic=True),)
    with HtmlReport(tmp_path / "r.html", title=HOSTILE) as report:
        report.add(name, Caption(HOSTILE, 0.5, evidence, (Candidate(HOSTILE, 1.0, 0.5, "lm"),), HOSTILE, 0.5))
        report.add_problem(HOSTILE, HOSTILE)
    page = Elements((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert len(page.all("script")) == 1
    assert len(page.all("img")) == 1
    assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)
    assert page.text.count("<script>alert(1)</script>") >= 6
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text
    (link,) = [a["href"] for a in page.all("a") if a.get("class") == "picture"]
    assert link is not None
    assert link.startswith("./")
    assert ":" not in link


@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=10))
def test_any_text_leaves_the_page_whole(said: str, name: str, source: str):
    plain = Elements(card("x", "./x", None, caption()))
    page = Elements(card(name, "./x", None, caption(said, source=source)))
    kinds = {tag for tag, _ in page.elements}
    assert kinds <= {tag for tag, _ in plain.elements} | {"b", "small", "p", "i"}
    assert [len(page.all(tag)) for tag in ("article", "h2", "li", "details")] == [1, 1, 4, 1]


def test_names_that_are_no_text_are_written(tmp_path: Path):
    with HtmlReport(tmp_path / "r.html") as report:
        report.add(tmp_path / "gone\udcff.jpg", caption())
    assert "no preview" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_page_appears_when_it_is_closed_and_not_before(tmp_path: Path, picture: Path):
    path = tmp_path / "report.html"
    path.write_text("old")
    report = HtmlReport(path)
    report.add(picture, caption())
    assert path.read_text() == "old"
    report.close()
    report.close()
    assert path.read_text().rstrip().endswith("</html>")
    path.write_text("old")
    with pytest.raises(AttributeError), HtmlReport(path) as broken:
        broken.add(picture, None)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert {item.name for item in tmp_path.iterdir()} == {"report.html", "a b.jpg"}


def test_pictures_go_to_the_disk_one_by_one(tmp_path: Path, picture: Path):
    with HtmlReport(tmp_path / "report.html") as report:
        report.add(picture, caption())
        (temporary,) = tmp_path.glob(".report.html*")
        sizes = []
        for _ in range(3):
            for _ in range(5):
                report.add(picture, caption())
            sizes.append(temporary.stat().st_size)
    assert sizes == sorted(set(sizes))
    assert len(Elements((tmp_path / "report.html").read_text(encoding="utf-8")).all("article")) == 16


def test_a_frame_stands_for_a_video(tmp_path: Path):
    with HtmlReport(tmp_path / "report.html") as report:
        report.add(tmp_path / "clip.mp4", caption(), picture=Image.new("RGB", (20, 10)))
    page = Elements((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.all("img")[0]["width"] == "20"
    assert "clip.mp4" in page.text


def test_a_withheld_caption_is_shown_as_such(tmp_path: Path, picture: Path):
    with HtmlReport(tmp_path / "report.html") as report:
        report.add(picture, caption(), withheld=True)
        report.add(picture, caption())
    page = Elements((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert [card["class"] for card in page.all("article")] == ["card withheld", "card"]
    assert page.text.count("Withheld a red wall") == 1


def test_many_pictures_go_on_in_further_pages(tmp_path: Path, picture: Path):
    with HtmlReport(tmp_path / "the report.html", pictures=3) as report:
        for number in range(7):
            report.add_problem(f"{number}.jpg", "gone")
        assert not list(tmp_path.glob("*.html"))
    names = ["the report.html", "the report-page-2.html", "the report-page-3.html"]
    assert [path.name for path in report.pages] == names
    pages = [Elements((tmp_path / name).read_text(encoding="utf-8")) for name in names]
    assert [len(page.all("article")) for page in pages] == [3, 3, 1]
    links = [{str(a["href"]) for a in page.all("a") if str(a["href"]).startswith("./the")} for page in pages]
    assert links == [
        {"./the%20report-page-2.html"},
        {"./the%20report.html", "./the%20report-page-3.html"},
        {"./the%20report-page-2.html"},
    ]


def test_a_full_page_is_the_only_one(tmp_path: Path):
    with HtmlReport(tmp_path / "report.html", pictures=2) as report:
        for name in ("a.jpg", "b.jpg"):
            report.add_problem(name, "gone")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert 'class="pages"' not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_pages_appear_together_and_never_in_place_of_something_else(tmp_path: Path):
    other = tmp_path / "report-page-2.html"
    other.write_text("<p>mine")

    def two_pages() -> None:
        with HtmlReport(tmp_path / "report.html", pictures=1) as report:
            report.add_problem("a.jpg", "gone")
            report.add_problem("b.jpg", "gone")

    with pytest.raises(InputError, match=r"report-page-2\.html is there, and no page of recap"):
        two_pages()
    assert [path.name for path in tmp_path.iterdir()] == ["report-page-2.html"]
    other.unlink()
    two_pages()
    two_pages()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_browser_shows_where_a_word_comes_from(tmp_path: Path, picture: Path):
    api = pytest.importorskip("playwright.sync_api")
    import shutil

    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        pytest.skip("there is no chromium")
    with HtmlReport(tmp_path / "report.html") as report:
        report.add(picture, caption())
        report.add(tmp_path / "other.jpg", caption("two dogs", confidence=0.1))
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto((tmp_path / "report.html").as_uri())
        lit = "article:first-of-type li.on"
        page.locator(".w.some", has_text="red").hover()
        assert page.locator(lit).all_inner_texts() == ["0.50\nthe wall is red walls"]
        page.locator(".said").first.focus()
        page.keyboard.press("ArrowRight")
        assert "wall: in 2 retrieved captions" in str(page.locator("#told").text_content())
        assert page.locator(lit).count() == 2
        page.keyboard.press("Escape")
        assert page.locator(lit).count() == 0
        page.fill("#find", "DOGS")
        assert page.locator(".card:visible").count() == 1
        assert page.locator("#count").text_content() == "1 of 2 pictures"
        page.fill("#find", "")
        page.select_option("#order", "up")
        assert "two dogs" in str(page.locator(".said").first.text_content())
        assert faults == []
        browser.close()
