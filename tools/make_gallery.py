"""Make docs/gallery.md and the two screenshots of the README again, with the captions that recap writes today.

    python tools/make_gallery.py                 # needs chromium and playwright for the screenshots; skipped without

The pictures are those in docs/images/gallery. What was thought of a caption stays as long as the caption does; a
new one is "not judged", until somebody reads it and writes right, partly or wrong into its place.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from recap.captioner import ReCap
from recap.types import Caption

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = DOCS / "images" / "gallery"
PAGE = DOCS / "gallery.md"
UNJUDGED = "not judged"
WIDTH, HEIGHT = 1100, 760
_ROW = re.compile(r"\| !\[[^]]*\]\(images/gallery/([\w-]+)\.jpg\) \| (.+?) \| (.+?) \| ([\w ]+) \|")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a picture is from."""

    what: str
    author: str
    licence: str
    package: str


SKIMAGE, SKLEARN = "scikit-image", "scikit-learn"
_BY = "[CC BY 2.0](https://creativecommons.org/licenses/by/2.0/)"
SOURCES = {
    "astronaut": Source("Eileen Collins, astronaut", "NASA", "public domain", SKIMAGE),
    "cat": Source("Chelsea the cat", "Stefan van der Walt", "CC0", SKIMAGE),
    "clock": Source("a wall clock, the camera moving", "Stefan van der Walt", "public domain", SKIMAGE),
    "coffee": Source("a cup of coffee", "Rachel Michetti", "CC0", SKIMAGE),
    "coins": Source("Greek coins from Pompeii", "Brooklyn Museum", "no known restrictions", SKIMAGE),
    "flower": Source("a dahlia", "vultilion", _BY, SKLEARN),
    "galaxies": Source("the Hubble eXtreme Deep Field", "NASA", "public domain", SKIMAGE),
    "grass": Source("grass", "Linolafett", "CC0", SKIMAGE),
    "moon": Source("the surface of the Moon", "Andreas Preuss", "CC0", SKIMAGE),
    "photographer": Source("a man with a camera", "Lav Varshney", "CC0", SKIMAGE),
    "rocket": Source("a Falcon 9 before its launch", "SpaceX", "public domain", SKIMAGE),
    "temple": Source("the Summer Palace in Beijing", "danielbuechele", _BY, SKLEARN),
}


def read_verdicts(page: str) -> dict[tuple[str, str], str]:
    """Return what was thought of captions, by picture and caption."""
    return {(name, text): verdict.strip() for name, text, _, verdict in _ROW.findall(page)}


def render(captions: Mapping[str, Caption], verdicts: Mapping[tuple[str, str], str]) -> str:
    """Return the page."""
    rows = [
        f"| ![{SOURCES[name].what}](images/gallery/{name}.jpg) | {caption.text} | {caption.confidence or 0:.0%}"
        f"{', unsure' if caption.unsure else ''} | {verdicts.get((name, caption.text), UNJUDGED)} |"
        for name, caption in captions.items()
    ]
    credit = [
        f"- `{name}.jpg`: {source.what}. {source.author}, {source.licence}; from {source.package}, scaled down."
        for name, source in SOURCES.items()
    ]
    return "\n".join([HEAD, *rows, "", TAIL, "", *credit, ""])


HEAD = """# Twelve pictures

What `recap caption` says of twelve photographs that two Python packages bring along. They are free to be shown here,
and harder than most of yours: captions of everyday scenes know little of deep space and ancient coins. Each caption was
read beside its picture: *right*, *partly* (the main thing or the scene is right, something else is not) or *wrong*. How
often recap is right on other photographs stands in [results](results.md).

| picture | caption | how sure recap is | read by eye |
|---|---|---|---|"""
TAIL = """`python tools/make_gallery.py` writes this page again; captions that are new have to be judged anew.

## Where they are from"""


def take_screenshots(pictures: Iterable[Path]) -> None:
    """Take pictures of the report and of the service's page."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        chromium = None
    if chromium is None:
        print("no screenshots: chromium or playwright is not installed", file=sys.stderr)
        return
    recap = [sys.executable, "-m", "recap"]
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        report = Path(temporary) / "report.html"
        names = [picture.name for picture in pictures]  # the report shows paths as they are given
        command = [*recap, "caption", *names, "--html", str(report)]
        subprocess.run(command, check=True, capture_output=True, cwd=PICTURES)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(report.as_uri())
        page.screenshot(path=DOCS / "images" / "report.jpg", type="jpeg", quality=70)
        command = [*recap, "serve", "--port", "0", "--search", str(PICTURES)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
            assert service.stderr is not None
            address = next(line.split()[-1] for line in service.stderr if "http://" in line)
            page.goto(address)
            page.wait_for_selector("html[data-ready]")
            page.locator("#search-text").fill("a cup of coffee")
            page.locator("#search form button").click()
            page.wait_for_selector("#search-found li:nth-child(6) img[src^=blob]")
            page.locator("#samples button").nth(3).click()
            page.wait_for_selector("#evidence li")
            page.locator("#find-tags").click()
            page.wait_for_selector("#tags > *", state="attached")
            page.locator("#search > summary").click()
            page.screenshot(path=DOCS / "images" / "page.jpg", type="jpeg", quality=70)
            service.terminate()
        browser.close()


def main() -> None:
    """Write the page and the screenshots."""
    captioner = ReCap.from_pretrained("builtin", progress=True)
    captions = {name: captioner.caption(PICTURES / f"{name}.jpg") for name in SOURCES}
    verdicts = read_verdicts(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    page = render(captions, verdicts)
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE}: {page.count(f'| {UNJUDGED} |')} captions have to be judged", file=sys.stderr)
    take_screenshots([PICTURES / f"{name}.jpg" for name in ("coffee", "cat", "astronaut")])


if __name__ == "__main__":
    main()
