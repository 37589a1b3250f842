from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from recap.errors import ImageError
from recap.server.fetching import Address, Fetcher, is_public

HERE, THERE = ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("127.0.0.2")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers["Host"]))  # type: ignore[attr-defined]
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
            return
        self.send_response(200 if self.path != "/missing" else 404)
        self.end_headers()
        self.wfile.write(b"x" * int(self.path.strip("/") or 5) if self.path.strip("/").isdigit() else b"hello")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer((str(HERE), 0), Handler)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def fetcher(site: ThreadingHTTPServer) -> Fetcher:
    """The real thing, for which 127.0.0.1 is the open internet and the rest is private."""
    names: dict[str, list[Address]] = {"here": [HERE], "there": [THERE], "both": [HERE, THERE], "none": []}
    port = site.server_address[1]
    return Fetcher(
        max_bytes=100,
        timeout=5,
        allowed=lambda address: address == HERE,
        resolver=lambda host, _: names[host],
        ports={"http": port},
    )


def test_the_picture_comes_from_the_address_that_was_checked(site: ThreadingHTTPServer):
    assert fetcher(site).fetch_now("http://here/a.jpg?b=c#d") == b"hello"
    assert site.seen == [("/a.jpg?b=c", "here")]  # type: ignore[attr-defined]


def test_a_redirect_is_followed_by_the_same_rules(site: ThreadingHTTPServer):
    assert fetcher(site).fetch_now("http://here/to//a.jpg") == b"hello"
    with pytest.raises(ImageError, match="not a public address"):
        fetcher(site).fetch_now("http://here/to/http://there/a.jpg")
    with pytest.raises(ImageError, match="only addresses of http"):
        fetcher(site).fetch_now("http://here/to/file:///etc/passwd")
    with pytest.raises(ImageError, match="more than 3 redirects"):
        fetcher(site).fetch_now("http://here" + "/to/" * 5 + "/a.jpg")


@pytest.mark.parametrize("name", ["there", "both", "none"])
def test_one_private_address_is_too_many(site: ThreadingHTTPServer, name: str):
    with pytest.raises(ImageError, match="not a public address"):
        fetcher(site).fetch_now(f"http://{name}/a.jpg")
    assert site.seen == []  # type: ignore[attr-defined]


def test_size_and_answers_are_checked(site: ThreadingHTTPServer):
    assert len(fetcher(site).fetch_now("http://here/100")) == 100
    with pytest.raises(ImageError, match="larger than 100 bytes"):
        fetcher(site).fetch_now("http://here/101")
    with pytest.raises(ImageError, match="the answer was 404"):
        fetcher(site).fetch_now("http://here/missing")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.jpg",
        "/etc/passwd",
        "file:///etc/passwd",
        "ftp://example.org/a.jpg",
        "gopher://127.0.0.1",
        "http://",
        "http://user:pass@example.org/",
        "http://example.org:22/",
        "http://example.org:99999/",
        "http://exa mple.org/",
        "http://example.org/\r\nHost: x",
        "http://[::1",
        "http://" + "a" * 3000,
        "data:image/png;base64,AAAA",
    ],
)
def test_strange_addresses_are_refused_without_being_looked_up(url: str):
    def resolver(host: str, port: int) -> list[Address]:
        raise AssertionError(host)

    with pytest.raises(ImageError):
        Fetcher(max_bytes=10, timeout=1, resolver=resolver).fetch_now(url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "192.0.0.1",
        "198.18.0.1",
        "240.0.0.1",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "2001:db8::1",
    ],
)
def test_private_addresses_in_all_their_disguises(address: str):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "64:ff9b::808:808"])
def test_public_addresses(address: str):
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "127.1"])
def test_names_of_this_machine_are_refused_with_the_real_resolver(host: str):
    with pytest.raises(ImageError, match=r"not a public address|no such host"):
        Fetcher(max_bytes=10, timeout=1).fetch_now(f"http://{host}/")
