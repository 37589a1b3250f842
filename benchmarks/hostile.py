"""200 hostile uploads against ``recap serve``: it must go on answering, and not grow by more than 1.5 GB.

    python benchmarks/hostile.py PICTURE [--pack builtin]

Bombs, polyglots, torn and lying files, wrong lengths, slow bodies, tricks with paths and names, addresses of private
networks, broken forms. Several at a time; after each round the server must be healthy, and at the end caption PICTURE.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import socket
import struct
import threading
import time
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image
from serve import BOUNDARY, Server, serving  # type: ignore[import-not-found]

UPLOADS = 200
AT_ONCE = 8
ALLOWED_GROWTH = 1500.0
"""MB."""
SECONDS = 12.0
"""So long a client waits for an answer."""


def form(content: bytes, name: str = "a.jpg", field: str = "image", extra: bytes = b"") -> bytes:
    """Return a form with one file."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'
    return extra + head.encode("utf-8", "surrogateescape") + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def value(name: str, text: str) -> bytes:
    """Return a field of a form."""
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode()


def request(body: bytes, *, length: int | None = None, path: str = "/v1/caption", more: str = "") -> bytes:
    """Return a whole request; ``length`` lies about its body."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode("utf-8", "surrogateescape") + body


def png(width: int, height: int, colour: int = 2, depth: int = 8, data: bytes | None = None) -> bytes:
    """Return a PNG of any claimed size, by default with too little data."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    pixels = zlib.compress(bytes(1000)) if data is None else data
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def zeros(count: int) -> bytes:
    """Return ``count`` zeros, compressed without holding them all."""
    packer = zlib.compressobj(9)
    pieces = [packer.compress(bytes(min(1 << 20, count - start))) for start in range(0, count, 1 << 20)]
    return b"".join(pieces) + packer.flush()


def drawn(kind: str, size: tuple[int, int], mode: str = "RGB", **options: object) -> bytes:
    """Return a real picture of one colour."""
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def pictures(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield hostile files: what they are, and their content."""
    side = 4990
    yield "bomb: 60000x60000 claimed", png(60000, 60000)
    yield "bomb: 2^31 wide", png(2**31 - 1, 2)
    yield "bomb: 24.9 million real pixels, RGBA", png(side, side, colour=6, data=zeros((4 * side + 1) * side))
    yield "bomb: 12 million deep grey", png(3500, 3500, colour=0, depth=16, data=zeros((2 * 3500 + 1) * 3500))
    yield "bomb: more data than pixels", png(100, 100, data=zeros(500 << 20))
    yield "bomb: progressive JPEG of 49 million pixels", drawn("JPEG", (7000, 7000), progressive=True)
    yield (
        "bomb: JPEG of 65500x65500 claimed",
        good[:2] + b"\xff\xc0\x00\x11\x08\xff\xdc\xff\xdc\x03\x01\x22\x00" + good[2:],
    )
    yield (
        "bomb: GIF of 65535x65535",
        b"GIF89a\xff\xff\xff\xff\x80\x00\x00" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0\x02",
    )
    yield "bomb: TIFF of many pixels", drawn("TIFF", (4990, 4990), "L", compression="tiff_lzw")
    yield "bomb: WebP", drawn("WEBP", (4990, 4990))
    yield "polyglot: JPEG and zip", good + b"PK\x03\x04" + bytes(5000)
    yield "polyglot: GIF and script", b"GIF89a/*" + bytes(10) + b"*/=1;alert(1)//"
    yield "polyglot: HTML as JPEG", b"<html><script>alert(1)</script>"
    yield "script: EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n(id) (r) file run\n"
    yield "script: SVG with an entity", b'<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg>&x;</svg>'
    yield "PDF", b"%PDF-1.7\n" + bytes(500)
    yield "empty", b""
    yield "zeros", bytes(1 << 20)
    yield "a torn JPEG", good[: len(good) // 2]
    yield "a torn header", good[:20]


def requests(good: bytes, seed: int) -> Iterator[tuple[str, bytes, float]]:
    """Yield what is sent: what it is, its bytes, and the pause between its pieces."""
    chance = random.Random(seed)
    for what, content in pictures(good):
        yield what, request(form(content)), 0
    for name in (
        "../../etc/passwd",
        "/etc/shadow",
        "..\\..\\boot.ini",
        "a\0b.jpg",
        "A" * 5000,
        "%00",
        "file:///etc/passwd",
    ):
        yield "a path as a name", request(form(good, name)), 0
        yield "a path as a field", request(value("image", name) + form(b"", "x")), 0
    for host in (
        "127.0.0.1:8000",
        "localhost",
        "169.254.169.254/latest/meta-data",
        "[::1]",
        "0.0.0.0",
        "2130706433",
        "10.0.0.1",
    ):
        yield (
            "an address of a private network",
            request(value("url", f"http://{host}/") + f"--{BOUNDARY}--\r\n".encode()),
            0,
        )
    for what, path, content in json_bodies(good):
        yield what, json_request(path, content), 0
    body, edge = form(good), BOUNDARY.encode()
    yield "a length that is too large", request(body, length=len(body) + 10_000), 0
    yield "a length that is too small", request(body, length=len(body) // 2), 0
    yield "a length beyond all limits", request(body, length=10**15), 0
    yield "a negative length", request(body, length=-5), 0
    yield "two lengths", request(body, more="Content-Length: 5\r\n"), 0
    yield "chunked and a length", request(body, more="Transfer-Encoding: chunked\r\n"), 0
    yield "a slow body", request(body), 0.5
    yield "a large body", request(form(bytes(40 << 20))), 0
    yield (
        "a thousand files",
        request(form(good[:99]).partition(b"\r\n--" + edge)[0].join([b"\r\n"] * 1001) + form(good)),
        0,
    )
    yield "a thousand fields", request(value("exclude", "x") * 1000 + form(good)), 0
    yield "a field of a megabyte", request(value("exclude", "x" * (1 << 20)) + form(good)), 0
    yield "no boundary", request(body).replace(BOUNDARY.encode(), b"other", 1), 0
    yield "numbers beyond reason", request(value("k", "9" * 400) + value("temperature", "nan") + form(good)), 0
    yield "a header of a megabyte", request(body, more=f"X-A: {'a' * (1 << 20)}\r\n"), 0
    yield "no HTTP at all", chance.randbytes(5000), 0
    while True:
        torn = bytearray(good)
        for _ in range(chance.randint(1, 200)):
            torn[chance.randrange(len(torn))] = chance.randrange(256)
        yield "a JPEG with random bytes", request(form(bytes(torn[: chance.randint(100, len(torn))]))), 0


def json_request(path: str, body: bytes) -> bytes:
    """Return a whole request with a json body."""
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{kind}".encode() + body


def json_bodies(good: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Yield for routes that take json what nobody should send: what it is, the route and the body."""
    picture = b64encode(good).decode()
    prompts = ("is there a" + " " * 90_000 + "x", "\u201e" * 90_000, "\ud800", 'Is "\x00" right?', "a" * 200_000)
    for text in prompts:
        yield "a prompt", "/api/generate", json.dumps({"prompt": text, "images": [picture], "stream": False}).encode()
    content: list[object] = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}]
    for parts in (content * 100, [0] * 15_000, [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]):
        yield (
            "parts of a message",
            "/v1/chat/completions",
            json.dumps({"messages": [{"role": "user", "content": parts}]}).encode(),
        )
    for path in ("/v1/caption", "/v1/search", "/api/chat", "/v1/chat/completions"):
        for body in (b"[" * 19_000, b"1" * 100_000, b"\xff", json.dumps(dict.fromkeys(map(str, range(9000)))).encode()):
            yield "strange json", path, body


def send(server: Server, content: bytes, pause: float) -> str:
    """Send bytes, and return the status of the answer, or that there was none."""
    try:
        with socket.create_connection((server.host, server.port), timeout=SECONDS) as connection:
            try:
                for start in range(0, len(content), 1000 if pause else len(content) or 1):
                    connection.sendall(content[start : start + (1000 if pause else len(content))])
                    time.sleep(pause)
            except OSError:
                pass  # the server has heard enough; it may have answered
            first = connection.recv(64)
            return first.split()[1].decode() if first.startswith(b"HTTP/1.1 ") else "closed"
    except TimeoutError:
        return "no answer in time"
    except OSError:
        return "closed"


def healthy(server: Server) -> None:
    """Stop everything unless the server answers."""
    status = send(server, b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 0)
    if status != "200":
        raise SystemExit(f"the server is not well: {status}")


def main() -> None:
    """Attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--pack", default="builtin")
    parser.add_argument("--uploads", type=int, default=UPLOADS)
    given = parser.parse_args()
    good = given.picture.read_bytes()
    seen: dict[str, Counter[str]] = {}
    with serving("--pack", given.pack, "--allow-urls") as server:
        if (status := send(server, request(form(good)), 0)) != "200":
            raise SystemExit(f"not even a good picture is captioned: {status}")
        idle, peak, over = server.memory, [0.0], threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                peak[0] = max(peak[0], server.memory)

        watcher = threading.Thread(target=watch)
        watcher.start()
        sending = requests(good, seed=0)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for _ in range(0, given.uploads, AT_ONCE):
                batch = [next(sending) for _ in range(AT_ONCE)]
                for (what, _, _), status in zip(
                    batch, threads.map(lambda item: send(server, *item[1:]), batch), strict=True
                ):
                    seen.setdefault(what, Counter())[status] += 1
                healthy(server)
        status = send(server, request(form(good)), 0)
        over.set()
        watcher.join()
        said = server.stop()
    for what, statuses in seen.items():
        print(f"{what}: {json.dumps(statuses)}")
    failed = sum(
        count for statuses in seen.values() for s, count in statuses.items() if s.startswith("5") and s != "503"
    )
    growth = max(peak[0] - idle, 0)
    print(f"{sum(map(Counter.total, seen.values()))} uploads, {failed} answered by an error of the server; {said}")
    print(f"a good picture afterwards: {status}; memory {idle:.0f} MB idle, {growth:.0f} MB more at the peak")
    if failed or status != "200" or growth > ALLOWED_GROWTH:
        raise SystemExit("not good enough")


if __name__ == "__main__":
    main()
