import io
import json
import os
import shutil
import struct
import subprocess
import warnings
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from recap.batch.metadata import Description, add_keywords, read_description, read_keywords, write_description
from recap.batch.metadata.containers import Metadata, read_jpeg, write_jpeg
from recap.batch.metadata.standards import (
    iptc_description,
    with_iptc_description,
    with_xmp_description,
    xmp_description,
)
from recap.errors import InputError

WHO = "recap 1.2"
TEXT = 'über "walls" & <dogs> 日本 🐕'
PHOTOSHOP_PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="Somebody's 1.0">
 <r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <r:Description r:about="uuid:1" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:ps="http://ns.adobe.com/photoshop/1.0/"
    xmp:Rating="4" ps:Instructions="one&#xA;two" ps:CaptionWriter='recap 0.9 (machine)'
    xmlns:d="http://purl.org/dc/elements/1.1/">
   <d:description><r:Alt><r:li xml:lang="x-default">an old text</r:li>
    <r:li xml:lang="de">ein alter</r:li></r:Alt></d:description>
   <d:subject><r:Bag><r:li>wall</r:li></r:Bag></d:subject>
   <!-- kept -->
  </r:Description>
 </r:RDF>
</x:xmpmeta>

<?xpacket end="w"?>"""


def pixels(**shape: Any) -> Image.Image:
    mode = shape.get("mode", "RGB")
    channels = len(mode) if mode != "L" else 1
    values = np.random.default_rng(1).integers(0, 256, (21, 34, channels), dtype=np.uint8)
    return Image.fromarray(values.squeeze(), mode)


FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain.jpg": ("RGB", {}),
    "grey.jpg": ("L", {"progressive": True}),
    "exif.jpg": ("RGB", {"exif": True, "comment": b"a comment", "icc_profile": b"profile" * 20000}),
    "xmp.jpg": ("RGB", {"xmp": PHOTOSHOP_PACKET.encode()}),
    "plain.png": ("RGBA", {}),
    "plain.webp": ("RGB", {}),
    "lossless.webp": ("RGBA", {"lossless": True}),
    "exif.webp": ("RGB", {"exif": True, "xmp": PHOTOSHOP_PACKET.encode()}),
    "plain.tif": ("RGB", {}),
    "packed.tiff": ("L", {"compression": "tiff_lzw"}),
    "big.tif": ("RGB", {"big_tiff": True}),
}


def make(name: str, folder: Path) -> Path:
    mode, options = FILES[name]
    options = dict(options)
    if options.pop("exif", False):
        exif = Image.Exif()
        exif[271], exif[274] = "A Camera", 6
        options["exif"] = exif
    pixels(mode=mode).save(folder / name, **options)
    return folder / name


@pytest.fixture(params=FILES)
def picture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make(request.param, tmp_path)


def decoded(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    with Image.open(path) as image, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow expects IPTC in a TIFF to be of another type than Adobe writes
        return np.asarray(image), dict(image.getexif())


def test_text_comes_back_and_nothing_else_changes(picture: Path):
    before = decoded(picture)
    os.utime(picture, ns=(1_000_000_000_123_456_789, 1_100_000_000_987_654_321))
    picture.chmod(0o640)
    assert write_description(picture, TEXT, generator=WHO)
    found = read_description(picture)
    assert found == Description(TEXT, "recap 1.2 (machine)")
    assert found.machine_written
    after = decoded(picture)
    np.testing.assert_array_equal(after[0], before[0])
    ours = {700, 33723} if picture.suffix.startswith(".tif") else set()
    assert {k: v for k, v in after[1].items() if k not in ours} == before[1]
    state = picture.stat()
    assert (state.st_mtime_ns, state.st_mode & 0o777) == (1_100_000_000_987_654_321, 0o640)
    assert list(picture.parent.iterdir()) == [picture]


def test_pillow_hands_out_a_packet_that_any_parser_reads(picture: Path):
    write_description(picture, TEXT, generator=WHO)
    with Image.open(picture) as image:
        tree = ElementTree.fromstring(image.info["xmp"])
    rdf, dc = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}", "{http://purl.org/dc/elements/1.1/}"
    assert [item.text for item in tree.findall(f".//{dc}description/{rdf}Alt/{rdf}li")] == [TEXT]


def test_writing_again_replaces_the_machines_text(picture: Path):
    write_description(picture, "first", generator=WHO)
    assert write_description(picture, "second", generator="recap 2.0")
    assert read_description(picture) == Description("second", "recap 2.0 (machine)")
    data = picture.read_bytes()
    assert b"first" not in data or picture.suffix.startswith(".tif")
    write_description(picture, "second", generator="recap 2.0")
    if not picture.suffix.startswith(".tif"):
        assert picture.read_bytes() == data


def test_keywords_are_added_to_those_that_are_there(picture: Path):
    there, before = read_keywords(picture), decoded(picture)
    write_description(picture, TEXT, generator=WHO)
    assert add_keywords(picture, ["teddy bear", "Köln & <日本>", "teddy bear"])
    assert read_keywords(picture) == [*there, "teddy bear", "Köln & <日本>"]
    assert not add_keywords(picture, ["Teddy Bear"]), "it is there already"
    assert add_keywords(picture, ["sofa"])
    assert read_keywords(picture) == [*there, "teddy bear", "Köln & <日本>", "sofa"]
    assert read_description(picture) == Description(TEXT, "recap 1.2 (machine)")
    np.testing.assert_array_equal(decoded(picture)[0], before[0])


def test_a_jpegs_compressed_picture_is_the_same(tmp_path: Path):
    path = tmp_path / "a.jpg"
    pixels().save(path, exif=Image.Exif(), comment=b"said")
    path.write_bytes(path.read_bytes() + b"trailer \xff\xd9")
    before = path.read_bytes()
    write_description(path, TEXT, generator=WHO)
    after = path.read_bytes()
    tables = before.index(b"\xff\xdb")
    assert after.endswith(before[tables:])
    without = write_jpeg(after, Metadata(b"", b""))
    for segment in (b"JFIF\0", b"said"):
        assert before.count(segment) == without.count(segment)


def exiftool(paths: list[Path]) -> list[dict[str, Any]]:
    command = [
        "exiftool",
        "-json",
        "-G1",
        "-charset",
        "utf8",
        "-a",
        "-validate",
        "-warning",
        "-all:all",
        *map(str, paths),
    ]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


needs_exiftool = pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
CHANGED = (
    *("XMP-", "IPTC", "Photoshop", "ExifTool", "System", "SourceFile"),
    *("File:CurrentIPTCDigest", "File:FileType", "RIFF:WebP_Flags"),
)


@needs_exiftool
def test_exiftool_reads_it_and_finds_no_fault(tmp_path: Path):
    pictures = [make(name, tmp_path) for name in FILES]
    befores = exiftool(pictures)
    for path in pictures:
        write_description(path, TEXT, generator=WHO)
    for path, before, after in zip(pictures, befores, exiftool(pictures), strict=True):
        assert after["XMP-dc:Description"] == TEXT
        assert after["XMP-photoshop:CaptionWriter"] == "recap 1.2 (machine)"
        if path.suffix.startswith((".j", ".t")):
            assert after["IPTC:Caption-Abstract"] == TEXT
            assert after["IPTC:Writer-Editor"] == "recap 1.2 (machine)"
        if path.suffix == ".jpg":
            assert after["Photoshop:IPTCDigest"] == after["File:CurrentIPTCDigest"]
        # a fault that was there before, such as missing EXIF, may stay
        assert after.get("ExifTool:Warning") == before.get("ExifTool:Warning"), path.name
        kept = {key: value for key, value in before.items() if not key.startswith(CHANGED)}
        assert {key: after.get(key) for key in kept} == kept
        if "xmp" in FILES[path.name][1]:
            assert after["XMP-xmp:Rating"] == 4
            assert after["XMP-photoshop:Instructions"] == "one\ntwo"
            assert after["XMP-dc:Subject"] == "wall"
            assert "XMP-dc:Description-de" not in after


def test_a_file_beside_a_picture_keeps_what_others_wrote(tmp_path: Path):
    beside = tmp_path / "photo.xmp"
    assert write_description(beside, TEXT, generator=WHO)
    assert read_description(beside) == Description(TEXT, f"{WHO} (machine)")
    ElementTree.fromstring(beside.read_bytes())
    beside.write_bytes(PHOTOSHOP_PACKET.encode())
    assert write_description(beside, TEXT, generator=WHO, keep_original=True)
    new = beside.read_text(encoding="utf-8")
    assert all(part in new for part in ('xmp:Rating="4"', "<!-- kept -->", "<r:li>wall</r:li>", "one&#xA;two"))
    assert "an old text" not in new
    assert write_description(beside, TEXT, generator=WHO)
    assert beside.read_text(encoding="utf-8") == new
    assert (tmp_path / "photo.xmp_original").read_bytes() == PHOTOSHOP_PACKET.encode()
    beside.write_bytes(PHOTOSHOP_PACKET.replace("(machine)", "Ada").encode())
    assert not write_description(beside, TEXT, generator=WHO)
    (tmp_path / "link.xmp").symlink_to(beside)
    with pytest.raises(InputError, match=r"link\.xmp: a symbolic link"):
        write_description(tmp_path / "link.xmp", TEXT, generator=WHO, overwrite=True)
    (tmp_path / "other.xmp").write_text("no XML")
    with pytest.raises(InputError, match="cannot be parsed"):
        write_description(tmp_path / "other.xmp", TEXT, generator=WHO)


@needs_exiftool
def test_exiftool_reads_keywords_and_finds_no_fault(tmp_path: Path):
    pictures = [make(name, tmp_path) for name in FILES]
    befores = exiftool(pictures)
    for path in pictures:
        add_keywords(path, ["teddy bear", "sofa"])
    for path, before, after in zip(pictures, befores, exiftool(pictures), strict=True):
        assert after["XMP-dc:Subject"][-2:] == ["teddy bear", "sofa"]
        if path.suffix.startswith((".j", ".t")):
            assert after["IPTC:Keywords"][-2:] == ["teddy bear", "sofa"]
        assert after.get("ExifTool:Warning") == before.get("ExifTool:Warning"), path.name


@needs_exiftool
def test_what_exiftool_wrote_is_read_and_kept(tmp_path: Path):
    pictures = [make(name, tmp_path) for name in FILES if name != "big.tif"]  # which exiftool does not write
    xmp_tags = ["-XMP-dc:Description=somebody's", "-XMP-dc:Creator=A Person", "-XMP-photoshop:CaptionWriter=A Person"]
    iptc_tags = [
        "-IPTC:Caption-Abstract=somebody's",
        "-IPTC:Keywords=wall",
        "-IPTC:City=Köln",
        "-charset",
        "iptc=Latin",
    ]
    with_iptc = [path for path in pictures if path.suffix.startswith((".j", ".t"))]
    for tags, chosen in ((xmp_tags, pictures), (iptc_tags, with_iptc)):
        command = ["exiftool", "-q", "-overwrite_original", "-charset", "utf8", *tags, *map(str, chosen)]
        subprocess.run(command, check=True)
    for path in pictures:
        assert read_description(path) == Description("somebody's", "A Person")
        data = path.read_bytes()
        assert not write_description(path, "a wall", generator=WHO)
        assert path.read_bytes() == data
        assert write_description(path, "ein Hügel", generator=WHO, overwrite=True)
    for path, after in zip(pictures, exiftool(pictures), strict=True):
        assert after["XMP-dc:Description"] == "ein Hügel"
        assert after["XMP-dc:Creator"] == "A Person"
        if path in with_iptc:
            assert (after["IPTC:City"], after["IPTC:Keywords"]) == ("Köln", "wall")
            assert after["IPTC:Caption-Abstract"] == "ein Hügel"


def test_the_original_is_kept_once(tmp_path: Path):
    path = tmp_path / "a.png"
    pixels().save(path)
    original = path.read_bytes()
    write_description(path, "one", generator=WHO, keep_original=True)
    write_description(path, "two", generator=WHO, keep_original=True)
    assert (tmp_path / "a.png_original").read_bytes() == original
    assert read_description(path).text == "two"


def test_a_link_stays_a_link(tmp_path: Path):
    pixels().save(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("a.png")
    write_description(tmp_path / "b.png", "x", generator=WHO)
    assert (tmp_path / "b.png").is_symlink()
    assert read_description(tmp_path / "a.png").text == "x"


def test_a_compressed_packet_of_a_png_is_read(tmp_path: Path):
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", PHOTOSHOP_PACKET, zip=True)
    info.add_text("Title", "kept")
    pixels().save(tmp_path / "a.png", pnginfo=info)
    assert read_description(tmp_path / "a.png") == Description("an old text", "recap 0.9 (machine)")
    assert write_description(tmp_path / "a.png", "new", generator=WHO)
    with Image.open(tmp_path / "a.png") as image:
        assert image.info["Title"] == "kept"
        assert "uuid:1" in image.info["XML:com.adobe.xmp"]
    assert read_description(tmp_path / "a.png").text == "new"


def test_every_other_byte_of_a_packet_is_kept():
    packet = PHOTOSHOP_PACKET.encode()
    new = with_xmp_description(packet, TEXT, "x (machine)")
    expected = packet
    for old in (
        b" ps:CaptionWriter='recap 0.9 (machine)'",
        packet[packet.index(b"<d:des") : packet.index(b"</d:des") + 16],
    ):
        expected = expected.replace(old, b"")
    start = new.index(b"<rdf:Description")
    end = new.index(b"</rdf:Description>\n") + len(b"</rdf:Description>\n")
    assert new[:start] + new[end:] == expected
    assert xmp_description(new) == (TEXT, "x (machine)")


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_packets_in_other_encodings(codec: str):
    packet = PHOTOSHOP_PACKET.encode(codec)
    assert xmp_description(packet)[0] == "an old text"
    assert xmp_description(with_xmp_description(packet, TEXT, "x"))[0] == TEXT


def test_an_empty_or_bare_packet_is_replaced():
    bare = b'<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/>'
    for packet in (None, b"", b"\0\0", bare):
        assert xmp_description(with_xmp_description(packet, TEXT, "x")) == (TEXT, "x")


def test_entities_are_refused():
    bomb = b'<!DOCTYPE a [<!ENTITY b "bbbb">]><a>&b;</a>'
    with pytest.raises(InputError, match="document type"):
        xmp_description(bomb)


def test_iptc_is_cut_between_letters_and_keeps_its_other_datasets():
    old = b"\x1c\x02\x19\x00\x04wall" + b"\x1c\x02\x78\x80\x04\x00\x00\x00\x03old"
    new = with_iptc_description(old, "é" * 1500, "somebody with a very long name indeed (machine)")
    text, writer = iptc_description(new)
    assert text == "é" * 1000
    assert writer == "somebody with a very long name i"
    assert b"\x1c\x02\x19\x00\x04wall" in new


def test_photoshop_resources_larger_than_a_segment_are_split(tmp_path: Path):
    path = tmp_path / "a.jpg"
    pixels().save(path)
    thumbnail = os.urandom(99_999)
    resources = b"8BIM\x04\x0c\x00\x00" + struct.pack(">I", len(thumbnail)) + thumbnail + b"\0"
    data = path.read_bytes()
    pieces = (resources[:60000], resources[60000:])
    segments = [b"\xff\xed" + struct.pack(">H", len(p) + 16) + b"Photoshop 3.0\0" + p for p in pieces]
    path.write_bytes(data[:20] + b"".join(segments) + data[20:])
    write_description(path, TEXT, generator=WHO)
    assert iptc_description(read_jpeg(path.read_bytes()).iptc or b"")[0] == TEXT
    joined = path.read_bytes().replace(b"\xff\xed\xff\xffPhotoshop 3.0\0", b"")
    assert joined.count(b"Photoshop 3.0\0") >= 1
    assert write_jpeg(path.read_bytes(), read_jpeg(path.read_bytes())) == path.read_bytes()


def test_further_pictures_are_not_lost(tmp_path: Path):
    path = tmp_path / "a.jpg"
    pixels().save(path, xmp=PHOTOSHOP_PACKET.encode())
    data = path.read_bytes()
    path.write_bytes(data[:20] + b"\xff\xe2\x00\x08MPF\0xx" + data[20:])
    with pytest.raises(InputError, match="several pictures"):
        write_description(path, "x", generator=WHO)


def test_a_packet_without_room_is_an_error(tmp_path: Path):
    path = tmp_path / "a.jpg"
    padded = PHOTOSHOP_PACKET.replace("\n<?xpacket end", " " * 62_000 + "\n<?xpacket end")
    pixels().save(path, xmp=padded.encode())
    assert write_description(path, "x " * 1000, generator=WHO)
    with pytest.raises(InputError, match="no room"):
        write_description(path, "x" * 65_000, generator=WHO)
    assert read_description(path).text == ("x " * 1000).strip()


@pytest.mark.parametrize("name", ["a.gif", "a.bmp", "raw.dng"])
def test_other_formats_are_named(tmp_path: Path, name: str):
    pixels().save(tmp_path / name, format="TIFF" if name == "raw.dng" else None)
    with pytest.raises(InputError, match=rf"{name}.*--xmp"):
        write_description(tmp_path / name, "x", generator=WHO)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.sampled_from(["JPEG", "PNG", "WEBP", "TIFF"]), st.data())
def test_a_broken_file_is_an_error_or_stays_as_it_was(tmp_path: Path, form: str, data: st.DataObject):
    buffer = io.BytesIO()
    pixels().save(buffer, form, xmp=PHOTOSHOP_PACKET.encode())
    content = bytearray(buffer.getvalue())
    for place in data.draw(st.lists(st.integers(0, min(len(content), 1500) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path / "a.tif"
    path.write_bytes(content)
    try:
        write_description(path, TEXT, generator=WHO, overwrite=True)
    except InputError:
        assert path.read_bytes() == content
    else:
        assert read_description(path).text == TEXT


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_survives_in_a_packet(text: str):
    kept = "".join(
        c for c in text if c in "\t\n\r" or 0x20 <= ord(c) < 0xD800 or 0xE000 <= ord(c) < 0xFFFE or ord(c) > 0xFFFF
    )
    found = xmp_description(with_xmp_description(None, text, "x"))[0]
    assert found == kept.replace("\r\n", "\n").replace("\r", "\n").strip()


def test_checksums_of_a_png_are_right(tmp_path: Path):
    path = tmp_path / "a.png"
    pixels().save(path)
    write_description(path, TEXT, generator=WHO)
    data, place = path.read_bytes(), 8
    while place < len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        assert zlib.crc32(data[place + 4 : place + 8 + length]) == int.from_bytes(
            data[place + 8 + length : place + 12 + length], "big"
        )
        place += 12 + length
