"""The page in a real browser. What needs chromium, playwright or axe-core is skipped where they are missing.

npm install --no-save axe-core          # or RECAP_AXE=/path/to/axe.min.js
"""

from __future__ import annotations

import base64
import math
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from recap import ReCap
from recap.confidence import FEATURES, Calibration
from recap.selection import RULES, describe_choice
from recap.server import ServerConfig, create_app

Serve = Callable[..., TestClient]
Open = Callable[..., Any]
ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("RECAP_AXE") or ROOT / "node_modules" / "axe-core" / "axe.min.js")
PHONE = {"width": 360, "height": 740}
KEY = "correct horse battery"

DROP = """([name, content]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name));
  for (const kind of ["dragenter", "dragover", "drop"])
    document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
}"""
PASTE = """([name, content]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name));
  document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: carried, bubbles: true, cancelable: true }));
}"""


def test_files_have_their_types_and_are_sent_once(serve: Serve):
    client = serve()
    page = client.get("/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    for name, kind in {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}.items():
        first = client.get(f"/static/{name}")
        assert first.headers["Content-Type"].startswith(kind)
        assert first.headers["Cache-Control"] == "no-cache"
        again = client.get(f"/static/{name}", headers={"If-None-Match": f"W/{first.headers['ETag']}"})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(f"/static/{name}", headers={"If-None-Match": '"other"'}).status_code == 200


def test_the_page_loads_nothing_from_elsewhere_and_everything_it_names_is_there(serve: Serve):
    client = serve()
    page = client.get("/").text
    named = re.findall(r'(?:src|href)="(static/[^"]+)"', page)
    assert {"static/page.js", "static/page.css", "static/icon.svg"} == set(named)
    modules, seen = ["page.js"], set()
    while modules:
        seen.add(module := modules.pop())
        script = client.get(f"/static/{module}")
        assert script.status_code == 200
        assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", script.text)
        modules += [name for name in re.findall(r'from "\./([\w.]+)"', script.text) if name not in seen]
    assert len(seen) > 5


@pytest.mark.parametrize("name", ["__init__.py", "../app.py", "%2e%2e/app.py", "samples/%2e%2e/page.js", "samples", ""])
def test_only_files_of_the_page_are_served(serve: Serve, name: str):
    answer = serve().get(f"/static/{name}")
    assert answer.status_code == 404
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_samples_are_the_pictures_of_the_examples(serve: Serve):
    client = serve(api_keys=(KEY,))
    names = client.get("/static/samples.json").json()
    assert names == sorted(path.name for path in (ROOT / "examples" / "pictures").glob("*.jpg"))
    picture = client.get(f"/static/samples/{names[0]}")
    assert picture.headers["Content-Type"] == "image/jpeg"
    assert picture.content == (ROOT / "examples" / "pictures" / names[0]).read_bytes()


def test_the_page_names_selection_rules_as_the_command_line_does(serve: Serve):
    script = serve().get("/static/result.js").text
    for rule in RULES.names():
        assert f'{rule}: "{describe_choice(rule)}"' in script


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no chromium")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Any, shared_pack: Path) -> Iterator[Open]:
    """Starts a service of its own and opens its page; nothing may be written to the console."""
    faults: list[str] = []
    with ExitStack() as stack:

        def start(
            folder: Path = shared_pack, *, viewport: dict[str, int] | None = None, expert: bool = True, **config: Any
        ) -> Any:
            address = stack.enter_context(_Running(folder, ServerConfig(editable=True, **config)))
            context = browser.new_context(viewport=viewport or {"width": 1200, "height": 900})
            stack.callback(context.close)
            context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
            page = context.new_page()
            page.set_default_timeout(120_000)
            page.on("console", lambda message: faults.append(message.text))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.goto(address)
            page.locator("#expert").set_checked(expert)
            page.wait_for_selector("html[data-ready]" if not config.get("api_keys") else "#key:not([hidden])")
            return page

        start.faults = faults  # type: ignore[attr-defined]
        yield start
    assert faults == []


class _Running:
    """The service on a free port of this process."""

    def __init__(self, folder: Path, config: ServerConfig) -> None:
        app = create_app(ReCap.from_pretrained(folder), config)
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://localhost:{self._socket.getsockname()[1]}/"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def drop(page: Any, name: str, content: bytes, how: str = DROP) -> None:
    page.evaluate(how, [name, base64.b64encode(content).decode()])


def settled(page: Any) -> None:
    page.wait_for_selector("#result[aria-busy=false]")


def becomes(page: Any, selector: str, text: str | re.Pattern[str]) -> None:
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_text(text, timeout=120_000)


def texts(page: Any, selector: str) -> list[str]:
    return [str(text) for text in page.locator(selector).all_text_contents()]


def said(page: Any) -> str:
    return str(page.locator("#said").text_content())


def test_a_dropped_picture_is_explained_and_evidence_can_be_left_out(open_page: Open, red: bytes):
    page = open_page()
    drop(page, "wall.png", red)
    page.wait_for_selector("#evidence li")
    first, evidence = said(page), texts(page, "#evidence li > span > span:first-child")
    assert "red" in first
    assert first in evidence
    assert "walls" in texts(page, "#evidence .source")[0]
    assert "wall.png" in str(page.locator("#name").text_content())
    assert page.locator("#candidates data").first.is_visible()
    page.get_by_role("button", name=f"Leave out: {first}", exact=True).first.press("Enter")
    page.wait_for_selector("#left-out:not([hidden])")
    assert first not in texts(page, "#evidence li > span > span:first-child")
    assert said(page) != first
    assert first in str(page.locator("#was").text_content())
    assert page.evaluate("document.activeElement.classList.contains('x')"), "the keyboard is where it was"
    page.get_by_role("button", name=f"Put back: {first}").click()
    page.wait_for_selector("#left-out", state="hidden")
    assert said(page) == first


def test_alignment_is_switched_off_beside_the_map_of_the_pack(open_page: Open, red: bytes):
    page = open_page()
    drop(page, "wall.png", red)
    page.wait_for_selector("#evidence li")
    page.locator("#compare > summary").click()
    page.wait_for_selector("#there li")
    assert page.locator("#there-title").text_content() == "Without alignment"
    here, there = texts(page, "#here li > span > span:first-child"), texts(page, "#there li > span > span:first-child")
    assert any("red" in text for text in here)
    assert here != there
    assert page.locator("#apart").is_hidden()
    page.get_by_label("procrustes", exact=True).check(force=True)
    becomes(page, "#there-title", "With procrustes")
    page.locator("#map > summary").click()
    page.wait_for_selector("#charts figure")
    assert [text.partition("alignment")[0].strip() for text in texts(page, "#charts strong")] == ["Before", "After"]
    chart = page.get_by_role("slider", name="After alignment")
    chart.focus()
    page.keyboard.press("Home")
    assert str(page.locator("#read").text_content()).startswith(f"1. {here[0]}")
    assert chart.get_attribute("aria-valuetext") == here[0]


def test_without_a_shared_space_it_is_said_why_there_is_nothing_to_switch_off(open_page: Open, pack: Path, red: bytes):
    page = open_page(pack)
    drop(page, "wall.png", red)
    page.wait_for_selector("#evidence li")
    page.locator("#compare > summary").click()
    page.wait_for_selector("#there li")
    assert page.get_by_label("no alignment").is_disabled()
    assert "no space in common" in " ".join(str(page.locator("#apart").text_content()).split())
    page.locator("#map > summary").click()
    page.wait_for_selector("#charts figure")
    assert page.locator("#charts figure").count() == 1


def test_ones_own_caption_is_scored_beside_the_machines(open_page: Open, red: bytes):
    page = open_page()
    drop(page, "wall.png", red)
    page.wait_for_selector("#evidence li")
    page.fill("#score-text", "the wall is green")
    page.keyboard.press("Enter")
    page.wait_for_selector("#scores tbody tr")
    rows = texts(page, "#scores tbody td:first-child > span")
    assert rows == [said(page), "the wall is green"], "the better one is first"
    page.fill("#score-references", "the wall is green\n\n")
    page.locator("#score form button").click()
    page.wait_for_selector("#with-references:not([hidden])")
    values = [float(text) for text in texts(page, "#scores td:nth-child(3)")]
    assert len(values) == 2
    assert values == sorted(values, reverse=True)


def test_an_edit_of_the_datastore_is_seen_at_once_and_can_be_undone(open_page: Open, red: bytes):
    page = open_page()
    drop(page, "wall.png", red)
    page.wait_for_selector("#evidence li")
    before = said(page)
    page.locator("#store > summary").click()
    assert str(page.locator("#store-note").text_content()) == "54 captions"
    page.fill("#add-text", "a red red wall")
    page.locator("#add button").click()
    page.wait_for_selector("#effect:not([hidden])")
    assert "of this picture's evidence" in str(page.locator("#effect").text_content())
    assert "a red red wall" in texts(page, "#evidence li.fresh > span > span:first-child")
    assert str(page.locator("#store-note").text_content()) == "55 captions"
    page.locator("#effect button").click()
    becomes(page, "#effect", re.compile("^Removed"))
    assert "a red red wall" not in texts(page, "#evidence li > span > span:first-child")
    assert said(page) == before
    page.fill("#find-text", "painted this wall red")
    page.locator("#find button").click()
    becomes(page, "#found-note", "3 captions.")
    page.locator("#found .x").first.click()
    becomes(page, "#found-note", "2 captions.")


def test_settings_reach_the_service(open_page: Open, red: bytes):
    page = open_page()
    drop(page, "wall.png", red)
    page.wait_for_selector("#evidence li")
    page.locator("#set-k").focus()
    page.keyboard.press("Home")
    page.wait_for_selector("#evidence li:only-child")
    assert page.locator("#set-temperature").is_disabled(), "there is no language model"
    page.get_by_role("button", name="as the pack has it").click()
    page.wait_for_selector("#evidence li:nth-child(2)")
    for kind, expected in {
        "text": said(page),
        "alt attribute": f'alt="{said(page)}"',
        "json": '"evidence": [',
    }.items():
        page.get_by_role("group", name="Copy the caption").get_by_role("button", name=kind).click()
        becomes(page, "#told", f"Copied: {kind}")
        assert expected in page.evaluate("navigator.clipboard.readText()")


def test_what_is_sent_never_becomes_markup(open_page: Open, new_pictures: dict[str, Path]):
    page = open_page()
    markup = "<img src=x onerror=alert(1)>"
    drop(page, f"{markup}.png", new_pictures["red"].read_bytes())
    drop(page, "pasted.png", new_pictures["blue"].read_bytes(), PASTE)
    becomes(page, "#said", re.compile("blue"))
    assert page.locator("#strip button").count() == 2
    page.locator("#strip button").first.click()
    becomes(page, "#said", re.compile("red"))
    page.locator("#store > summary").click()
    page.fill("#add-text", f"a red {markup} wall \u202eesrever")
    page.fill("#add-source", "<b>bold</b>")
    page.locator("#add button").click()
    page.wait_for_selector("#effect:not([hidden])")
    page.fill("#find-text", markup)
    page.locator("#find button").click()
    becomes(page, "#found-note", "1 caption.")
    assert texts(page, "#found li > span > span") == [f"a red {markup} wall \ufffdesrever"]
    assert texts(page, "#found .source") == ["<b>bold</b>"]
    assert page.locator("[onerror], #bench b, #bench img[src=x]").count() == 0


def test_errors_are_told_in_the_words_of_the_service(open_page: Open, red: bytes):
    page = open_page()
    drop(page, "notes.txt", b"no picture at all")
    page.wait_for_selector("#problem:not([hidden])")
    assert "notes.txt: not a picture that is read here" in str(page.locator("#problem").text_content())
    assert said(page) == "No caption"
    drop(page, "wall.png", red)
    page.wait_for_selector("#evidence li")
    assert page.locator("#problem").is_hidden()
    # the browser itself writes down that an answer was 422
    (fault,) = open_page.faults  # type: ignore[attr-defined]
    assert "422" in fault
    open_page.faults.clear()  # type: ignore[attr-defined]


def test_a_key_opens_the_service(open_page: Open, red: bytes):
    page = open_page(api_keys=(KEY.replace(" ", "-"),))
    assert "a key is needed" in str(page.locator("#problem").text_content())
    page.fill("#key-value", KEY.replace(" ", "-"))
    page.keyboard.press("Enter")
    page.wait_for_selector("html[data-ready]")
    drop(page, "wall.png", red)
    page.wait_for_selector("#evidence li")
    assert all("401" in fault for fault in open_page.faults)  # type: ignore[attr-defined]
    open_page.faults.clear()  # type: ignore[attr-defined]


def test_an_unsure_caption_has_a_mark_and_a_word(open_page: Open, shared_pack: Path, red: bytes, tmp_path: Path):
    captioner = ReCap.from_pretrained(shared_pack)
    for confidence, marked in ((0.2, True), (0.8, False)):
        captioner.calibration = Calibration(
            math.log(confidence / (1 - confidence)), (0.0,) * len(FEATURES), "ols", 20, "made up"
        )
        captioner.save_pretrained(tmp_path / str(confidence))
        page = open_page(tmp_path / str(confidence))
        drop(page, "wall.png", red)
        page.wait_for_selector("#evidence li")
        assert page.locator("#unsure").is_visible() == marked
        assert "red" in said(page)
        assert ("unsure: " in str(page.locator("#told").text_content())) == marked
        assert f"{confidence:.0%}".rstrip("%") in texts(page, "#facts .chip")[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_off_and_axe_finds_no_serious_fault(open_page: Open, red: bytes, scheme: str):
    page = open_page(viewport=PHONE)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.get_by_role("button", name="Sample: cat").click()
    page.wait_for_selector("#evidence li")
    assert page.locator("#shown").bounding_box()["y"] < PHONE["height"] / 2, "it is brought into sight"
    assert page.locator("#score-references").bounding_box()["y"] < page.locator("#score button").bounding_box()["y"]
    drop(page, f"{'long' * 20}.png", red)
    becomes(page, "#said", re.compile("red"))
    page.locator("#evidence .x").first.click()
    page.wait_for_selector("#left-out:not([hidden])")
    for name in ("compare", "map", "store"):
        page.locator(f"#{name} > summary").click()
    page.wait_for_selector("#there li")
    page.wait_for_selector("#charts figure")
    page.fill("#score-text", "the wall is " + "very" * 60)
    page.keyboard.press("Enter")
    page.wait_for_selector("#scores tbody tr")
    page.wait_for_selector("#found li")
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    if not AXE.is_file():
        pytest.skip("there is no axe-core")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    faults = page.evaluate("axe.run()")["violations"]
    assert [
        (fault["id"], [node["html"] for node in fault["nodes"]])
        for fault in faults
        if fault["impact"] in ("serious", "critical")
    ] == []


def test_numbers_and_maps_are_for_experts(open_page: Open, red: bytes):
    page = open_page(expert=False)
    drop(page, "wall.png", red)
    page.wait_for_selector("#evidence li")
    for hidden in ("#settings", "#compare", "#map", "text=aligned cosine"):
        assert not page.locator(hidden).first.is_visible(), hidden
    assert page.locator("#evidence li").count() > 0
    page.locator("#expert").check()
    for shown in ("#settings", "#compare", "#map", "text=aligned cosine"):
        assert page.locator(shown).first.is_visible(), shown
    page.reload()
    assert page.locator("#expert").is_checked(), "it is remembered"


def test_keywords_are_shown_on_request(open_page: Open, red: bytes):
    page = open_page(expert=False)
    drop(page, "wall.png", red)
    page.wait_for_selector("#evidence li")
    with page.expect_response("**/v1/tags") as answer:
        page.locator("#find-tags").click()
    expected = [tag["text"] for tag in answer.value.json()["tags"]] or ["none that it is sure enough of"]
    for text in expected:
        becomes(page, "#tags", re.compile(re.escape(text)))


def test_pictures_are_found_by_a_text_and_captioned(
    open_page: Open, new_pictures: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path))
    page = open_page(expert=False, search=new_pictures["red"].parent)
    page.locator("#search-text").fill("a red wall")
    page.locator("#search button", has_text="Find").click()
    first = page.locator("#search-found button").first
    first.wait_for()
    assert page.locator("#search-found button").count() == 6
    assert "red.png" in first.inner_text()
    page.wait_for_selector("#search-found img[src^=blob]")
    first.click()
    becomes(page, "#said", re.compile("red"))


def test_without_a_folder_there_is_no_search(open_page: Open):
    assert not open_page().locator("#search").is_visible()
