import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from recap.alt.fill import MARK, fill
from recap.errors import ImageError
from recap.types import Caption

HOSTILE = "a \"red\" <b>wall</b> & 'more' über 日本"


class Describe:
    """Says the same of every picture that is there, and remembers what it was asked."""

    def __init__(self, text: str = HOSTILE) -> None:
        self.text, self.asked = text, []

    def __call__(self, paths: Sequence[Path]) -> Iterator[Caption | ImageError]:
        for path in paths:
            self.asked.append(path)
            if "gone" in str(path):
                yield ImageError(f"{path}: there is no such file")
            else:
                yield Caption(self.text, 0.5, (), (), "consensus")


class Images(HTMLParser):
    """What the standard library sees of the images of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            # a browser takes the first of two attributes with the same name
            self.found.append(dict(reversed(attrs)))


def images(page: str) -> list[dict[str, str | None]]:
    parser = Images()
    parser.feed(page)
    parser.close()
    return parser.found


def filled(page: str, **options: bool) -> str:
    return fill(page.encode(), Describe("it's"), base="site", **options).content.decode()


ALT = f' alt="it&#x27;s"{MARK}'


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<img src=a.png>", f"<img{ALT} src=a.png>"),
        ("<IMG SRC='a.png'>", f"<IMG{ALT} SRC='a.png'>"),
        ('<img\r\n\tsrc = "a.png"\r\n/>', f'<img{ALT}\r\n\tsrc = "a.png"\r\n/>'),
        ("<img/src=a.png/>", f"<img{ALT}/src=a.png/>"),
        (
            '<p title="<img src=x.png>"><img src=a.png title="1 > 0">',
            f'<p title="<img src=x.png>"><img{ALT} src=a.png title="1 > 0">',
        ),
        ('<img class="{{ c }}" src=a.png>', f'<img{ALT} class="{{{{ c }}}}" src=a.png>'),
        (
            "<script>'<img src=a.png>'</script ><img src=b.png>",
            f"<script>'<img src=a.png>'</script ><img{ALT} src=b.png>",
        ),
        ("<!--><img src=a.png>", f"<!--><img{ALT} src=a.png>"),
        ("<img src=a.png data-alt=x>", f"<img{ALT} src=a.png data-alt=x>"),
    ],
)
def test_a_missing_text_is_put_behind_the_name_of_the_tag(page: str, expected: str):
    assert filled(page) == expected


@pytest.mark.parametrize(
    ("page", "status"),
    [
        ('<img src=a.png alt="a wall">', "described"),
        ("<img src=a.png ALT='a wall' alt=''>", "described"),
        ('<img src=a.png aria-label="a wall">', "described"),
        ('<img src=a.png :alt="text">', "described"),
        ('<img src=a.png alt="">', "decorative"),
        ("<img src=a.png alt>", "decorative"),
        ("<img src=a.png role=presentation>", "decorative"),
        ('<img src=a.png aria-hidden="true">', "decorative"),
        ("<img src=https://example.org/a.png>", "remote"),
        ("<img src=//example.org/a.png>", "remote"),
        ("<img src='http://[/a.png'>", "remote"),
        ("<img src=&#104;ttps://example.org/a.png>", "remote"),
        ("<base href=https://example.org/><img src=a.png>", "remote"),
        ("<img src=data:image/png;base64,AAAA>", "embedded"),
        ('<img src="{{ url }}">', "template"),
        ('<img src="<?= $url ?>">', "template"),
        ("<img src=a.png {{ attributes }}>", "template"),
        ("<img src=a.png {% if x > 1 %}alt=y{% endif %}>", "template"),
        ("<img title=a>", "sourceless"),
        ("<img srcset=' , '>", "sourceless"),
        ("<img data-src='{{ url }}' src=a.png>", "template"),
        ("<img src=gone.png>", "unreadable"),
    ],
)
def test_others_are_left_alone_and_reported(page: str, status: str):
    result = fill(page.encode(), Describe(), base="site")
    assert result.content == page.encode()
    assert [finding.status for finding in result.findings] == [status]


@pytest.mark.parametrize(
    ("attributes", "source"),
    [
        ("srcset='b.png 1x, c.png 2x'", "b.png"),
        ("srcset='b.png, c.png 2x'", "b.png"),
        ("srcset='b.png 480w'", "b.png"),
        ("data-src=b.png", "b.png"),
        ("src=spacer.gif data-src=b.png", "b.png"),
        ("src='data:image/gif;base64,AA' data-srcset='b.png 1x, c.png 2x'", "b.png"),
        ("src=a.png srcset='b.png 2x'", "a.png"),
    ],
)
def test_pictures_of_several_sizes_and_those_that_load_late(attributes: str, source: str):
    describe = Describe("it's")
    done = fill(f"<img {attributes}>".encode(), describe, base="site")
    assert done.content.decode() == f"<img{ALT} {attributes}>"
    assert describe.asked == [Path("site") / source]
    assert [finding.src for finding in done.findings] == [source]


def test_pictures_of_the_web_are_described_on_request():
    page = b"<img src=https://example.org/a.png?b=c><img src=//example.org/d.png><img src=ftp://example.org/e.png>"
    describe = Describe("it's")
    done = fill(page, describe, base="site", remote=True)
    assert describe.asked == ["https://example.org/a.png?b=c", "https://example.org/d.png"]
    assert [finding.status for finding in done.findings] == ["filled", "filled", "remote"]
    left = fill(page, describe, base="site")
    assert [finding.status for finding in left.findings] == ["remote"] * 3
    assert left.content == page


@pytest.mark.parametrize(
    "page",
    [
        "<!-- <img src=a.png> -->",
        "<title><img src=a.png></title>",
        "<textarea><img src=a.png></TEXTAREA>",
        "<style><img src=a.png>",
        "<?php echo '<p><img src=a.png>' ?>",
        "<% x > '<img src=a.png>' %>",
        "<![CDATA[ > <img src=a.png> ]]>",
        "<img src='a.png",
        "<imgs src=a.png>",
        "</img src=a.png>",
        "< img src=a.png>",
    ],
)
def test_what_is_no_picture_is_not_seen(page: str):
    result = fill(page.encode(), Describe(), base="site")
    assert (result.content, result.findings) == (page.encode(), ())


@pytest.mark.parametrize(
    ("page", "options", "expected"),
    [
        ('<img alt="" src=a.png>', {"empty": True}, f"<img{ALT} src=a.png>"),
        ("<img src=a.png alt>", {"empty": True}, f"<img src=a.png{ALT}>"),
        ("<img src=a.png alt = ''/>", {"empty": True}, f"<img src=a.png{ALT}/>"),
        ('<img src="a b.png" alt="A b.PNG">', {"placeholders": True}, f'<img src="a b.png"{ALT}>'),
        ('<img src=a.png alt="IMG_0123">', {"placeholders": True}, f"<img src=a.png{ALT}>"),
        ('<img src=a.png alt="image">', {"placeholders": True}, f"<img src=a.png{ALT}>"),
        ('<img src=a.png alt="image of a wall">', {"placeholders": True}, '<img src=a.png alt="image of a wall">'),
        ('<img src=a.png alt="">', {"placeholders": True}, '<img src=a.png alt="">'),
        ('<img src=a.png alt="image">', {"empty": True}, '<img src=a.png alt="image">'),
    ],
)
def test_empty_texts_and_placeholders_are_replaced_on_request(page: str, options: dict[str, bool], expected: str):
    assert filled(page, **options) == expected


def test_sources_are_found_as_a_browser_would():
    describe = Describe()
    page = '<img src="a%20b.png?v=2#x"><img src="/img/&eacute;.png"><img src="../up.png"><img src="file:///abs/c.png">'
    fill(page.encode(), describe, base="site")
    assert describe.asked == [Path("site/a b.png"), Path("site/img/é.png"), Path("site/../up.png"), Path("/abs/c.png")]
    under = Describe()
    fill(b'<base href="pics/"><img src=a.png>', under, base="site")
    assert under.asked == [Path("site/pics/a.png")]


def test_a_picture_is_described_once_and_findings_are_in_the_order_of_the_page():
    describe = Describe("a wall")
    result = fill(b"<img src=a.png>\n<img src=gone.png>\n<img src=a.png>", describe, base="")
    assert describe.asked == [Path("a.png"), Path("gone.png")]
    assert [(f.line, f.status) for f in result.findings] == [(1, "filled"), (2, "unreadable"), (3, "filled")]
    assert result.findings[0].text == "a wall"


def test_a_spacer_has_nothing_to_say(tmp_path: Path):
    Image.new("RGB", (1, 40)).save(tmp_path / "dot.png")
    result = fill(b"<img src=dot.png>", Describe(), base=tmp_path)
    assert result.content == b"<img src=dot.png>"
    assert result.count("decorative") == 1


@pytest.mark.parametrize(
    ("codec", "declared", "kept"),
    [
        ("utf-8", '<meta charset="utf-8">', True),
        ("utf-8", "", True),
        ("utf-8-sig", "", True),
        ("utf-16", "", True),
        ("cp1252", "", False),
        ("iso-8859-1", "<META http-equiv=Content-Type content='text/html; charset=ISO-8859-1'>", False),
        ("shift_jis", "<meta charset=Shift_JIS>", False),
        ("iso2022_jp", "<meta charset=iso-2022-jp>", False),
        ("koi8-r", "<?xml version='1.0' encoding='koi8-r'?>", False),
    ],
)
def test_encodings_are_kept_and_no_letter_is_lost(codec: str, declared: str, kept: bool):
    own = {"shift_jis": "表示ソ", "iso2022_jp": "日本語", "koi8-r": "стена"}.get(codec, "Käse")
    page = f"{declared}<p>{own}</p><img src=a.png><p>{own}</p>".encode(codec)
    result = fill(page, Describe("naïve 日本"), base="").content
    again = result.decode(codec)
    assert ("naïve 日本" in again) == kept
    assert images(again)[0]["alt"] == "naïve 日本"
    assert re.sub(r' alt="[^"]*" data-alt-source="recap"', "", again).encode(codec) == page


def test_bytes_that_are_no_text_are_kept():
    page = b'<meta charset="utf-8">\xff\xfe\x80<img src=a.png>\xc3\x28\x00'
    assert fill(page, Describe("x"), base="").content == page.replace(b"<img", b'<img alt="x" data-alt-source="recap"')


PIECES = st.one_of(
    st.sampled_from(
        [
            "<img",
            "<IMG",
            "<img/",
            "src=a.png",
            "src='b.png'",
            "alt",
            "alt=''",
            "alt=x",
            ">",
            "/>",
            "'",
            '"',
            "=",
            "<!--",
            "-->",
            "<!-->",
            "<script>",
            "</script>",
            "<title>",
            "</title>",
            "<p>",
            "</p>",
            "<?",
            "?>",
            "<%",
            "%>",
            "<![CDATA[",
            "]]>",
            "{{x}}",
            "{%if%}",
            "<textarea>",
            "</textarea>",
            "<base",
            "href=x/>",
            "<",
        ]
    ),
    st.sampled_from([" ", "\n", "\r\n", "\t", "\f", "\x00", "ä", "日"]),
    st.text(max_size=4),
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join), st.text(max_size=12))
def test_nothing_but_the_new_attributes_differs(page: str, said: str):
    before = page.encode("utf-8", "surrogatepass")
    result = fill(before, Describe(said), base="site")
    shown = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "", " ".join(said.split()))
    codecs = (shown.encode(), shown.encode("ascii", "xmlcharrefreplace"))
    pattern = b"|".join(re.escape(b' alt="' + escape(text.decode()).encode() + b'"' + MARK.encode()) for text in codecs)
    assert re.sub(pattern, b"", result.content) == before
    assert len(re.findall(pattern, result.content)) >= result.count("filled")


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_come_back(page: bytes):
    assert fill(page, Describe(), base="").content == page or b"<img" in page.lower()


QUOTED = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["title", "Class", "data-x", "width"]), QUOTED, st.sampled_from("\"'")), max_size=4
    ),
    QUOTED,
)
def test_a_parser_sees_the_same_page_and_the_text(attributes: list[tuple[str, str, str]], said: str):
    written = " ".join(f"{name}={quote}{escape(value)}{quote}" for name, value, quote in attributes)
    page = f"<p>x</p><img {written} src=a.png><p>y</p>"
    result = fill(page.encode(), Describe(said), base="").content.decode()
    (before,), (after,) = images(page), images(result)
    assert after.pop("alt") == re.sub(r"[\x00-\x1f\x7f-\x9f]", "", " ".join(said.split()))
    assert after.pop("data-alt-source") == "recap"
    assert after == before


def test_command(
    pairs_folder: Path, encoder_folder: Path, new_pictures: dict[str, Path], tmp_path: Path, web: tuple[Path, str]
):
    from recap import ReCap
    from recap.cli.alt import alt

    pack = tmp_path / "pack"
    ReCap.fit(pairs_folder, encoder=f"onnx:{encoder_folder}").save_pretrained(pack)
    page = tmp_path / "page.html"
    page.write_bytes(b"<img src=red.png>\r\n<img src=gone.png><img src=https://example.org/x.png>")
    page.chmod(0o640)
    run = CliRunner()
    options = ["--pack", str(pack), "--base", str(new_pictures["red"].parent)]
    done = run.invoke(alt, [str(page), *options])
    assert done.exit_code == 1
    assert done.stdout_bytes.startswith(b'<img alt="')
    assert b"red" in done.stdout_bytes.split(b'"')[1]
    assert "gone.png" in done.stderr
    assert "example.org" in done.stderr
    listed = run.invoke(alt, [str(page), *options, "--in-place", "--json"])
    assert '"status": "filled"' in listed.stdout
    assert page.read_bytes() == done.stdout_bytes
    assert page.stat().st_mode & 0o777 == 0o640
    assert run.invoke(alt, [str(page), *options, "--json"]).exit_code == 2
    shutil.copy(new_pictures["blue"], web[0] / "blue.png")
    page.write_text(f"<img src={web[1]}/blue.png>")
    assert b"blue" in run.invoke(alt, [str(page), *options, "--remote"]).stdout_bytes.split(b'"')[1]
    assert run.invoke(alt, [str(page), str(page), *options]).exit_code == 2


def test_a_folder_of_pages(
    pairs_folder: Path, encoder_folder: Path, new_pictures: dict[str, Path], tmp_path: Path, monkeypatch
):
    from recap import ReCap
    from recap.cli.alt import alt

    captioner, asked = ReCap.fit(pairs_folder, encoder=f"onnx:{encoder_folder}"), []
    caption_each = captioner.caption_each
    monkeypatch.setattr(
        captioner, "caption_each", lambda sources: caption_each([asked.append(s) or s for s in sources])
    )
    monkeypatch.setattr("recap.cli.alt.load_captioner", lambda *_: captioner)
    for name in ("img", "deep", "empty"):
        (tmp_path / "site" / name).mkdir(parents=True)
    shutil.copy(new_pictures["red"], tmp_path / "site" / "img" / "red.png")
    for name in ("index.html", "deep/page.HTM", "deep/notes.txt"):
        (tmp_path / "site" / name).write_text("<img src=/img/red.png>")
    (tmp_path / "other.html").write_text("<img src=/img/red.png>")
    (tmp_path / "site" / "link.html").symlink_to(tmp_path / "other.html")
    run = CliRunner()
    assert run.invoke(alt, [str(tmp_path / "site")]).exit_code == 2
    assert run.invoke(alt, [str(tmp_path / "site" / "empty"), "--in-place"]).exit_code == 2
    assert run.invoke(alt, [str(tmp_path / "site"), "--in-place", "--min-confidence", "0"]).exit_code == 0
    for name in ("index.html", "deep/page.HTM"):
        assert "red" in (tmp_path / "site" / name).read_text().split('"')[1]
    for name in ("site/deep/notes.txt", "other.html"):
        assert (tmp_path / name).read_text() == "<img src=/img/red.png>"
    assert asked == [tmp_path / "site" / "img" / "red.png"], "a picture of two pages is looked at once"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_in_the_place_of_a_picture_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "gone.png")
    done: list[object] = []
    page = b'<img src="gone.png">'
    worker = threading.Thread(target=lambda: done.append(fill(page, Describe(), base=tmp_path)), daemon=True)
    worker.start()
    worker.join(20)
    assert done
    assert done[0].content == page
