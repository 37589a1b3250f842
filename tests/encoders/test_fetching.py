from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from recap.encoders.fetching import Address, Fetcher, fetch_picture, is_no_platform, is_public
from recap.errors import ImageError
from recap.server.middleware import Memory, Metrics
from recap.server.problems import Problem

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
        if self.path.startswith("/kind/"):
            self.send_header("Content-Type", self.path.removeprefix("/kind/"))
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


@pytest.mark.parametrize("kind", ["image/jpeg", "IMAGE/PNG", "application/octet-stream", "binary/octet-stream"])
def test_pictures_and_what_may_be_one_are_taken(site: ThreadingHTTPServer, kind: str):
    assert fetcher(site).fetch_now(f"http://here/kind/{kind}") == b"hello"


@pytest.mark.parametrize("kind", ["text/html;charset=utf-8", "application/json", "video/mp4"])
def test_an_answer_that_is_no_picture_is_refused_by_its_kind(site: ThreadingHTTPServer, kind: str):
    with pytest.raises(ImageError, match=f"http://here/kind/.*not a picture but {kind.partition(';')[0]}$"):
        fetcher(site).fetch_now(f"http://here/kind/{kind}")


def own(site: ThreadingHTTPServer, **names: str) -> tuple[Fetcher, str]:
    """The fetcher of the library, and the address of a site in a private network."""
    port = site.server_address[1]
    known = {"here": [HERE], **{name: [ipaddress.ip_address(address)] for name, address in names.items()}}
    made = Fetcher(max_bytes=100, timeout=5, resolver=lambda host, _: known[host], trusted=True)
    return made, f"http://here:{port}"


def test_what_the_user_names_may_be_private_and_redirect_to_itself(site: ThreadingHTTPServer):
    made, base = own(site)
    assert made.fetch_now(f"{base}/a.jpg") == b"hello"
    assert made.fetch_now(f"{base}/to//a.jpg") == b"hello"
    assert site.seen[0] == ("/a.jpg", base.removeprefix("http://"))  # type: ignore[attr-defined]


def test_a_redirect_to_another_host_follows_the_rules_of_the_service(site: ThreadingHTTPServer):
    made, base = own(site, other="127.0.0.2", cloud="169.254.169.254")
    with pytest.raises(ImageError, match="not a public address"):
        made.fetch_now(f"{base}/to/http://other/a.jpg")
    with pytest.raises(ImageError, match="only the usual port"):
        made.fetch_now(f"{base}/to/{base.replace('here', 'other')}/a.jpg")
    with pytest.raises(ImageError, match="not a public address"):
        made.fetch_now("http://cloud/latest/meta-data")


def test_a_redirect_goes_to_the_address_that_the_name_had_before(site: ThreadingHTTPServer):
    """A name of a stranger that answers differently the second time could make us speak with a machine nearby."""
    answers = [[HERE], [ipaddress.ip_address("127.0.0.3")]]
    made = Fetcher(max_bytes=100, timeout=5, resolver=lambda host, _: answers.pop(0), trusted=True)
    assert made.fetch_now(f"http://stranger:{site.server_address[1]}/to//a.jpg") == b"hello"
    assert len(answers) == 1


@pytest.mark.parametrize(
    "address", ["::ffff:169.254.169.254", "64:ff9b::a83f:8110", "2002:a83f:8110::", "fd00:ec2::254"]
)
def test_platforms_are_found_inside_other_addresses(address: str):
    assert not is_no_platform(ipaddress.ip_address(address))
    assert is_no_platform(ipaddress.ip_address("::ffff:192.168.0.1"))


def test_the_library_fetches_what_is_named(site: ThreadingHTTPServer):
    base = f"http://127.0.0.1:{site.server_address[1]}"
    assert fetch_picture(f"{base}/ä b.jpg?x=1#top") == b"hello"
    assert site.seen == [("/%C3%A4%20b.jpg?x=1", base.removeprefix("http://"))]  # type: ignore[attr-defined]
    site.shutdown()
    site.server_close()
    with pytest.raises(ImageError, match=r"a\.jpg: cannot be fetched \(the connection was refused\)$"):
        fetch_picture(f"{base}/a.jpg?key=secret")
    with pytest.raises(ImageError, match="there is no such host"):
        fetch_picture("http://no-such-host.invalid/a.jpg")


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
        # platforms of clouds
        "192.0.0.192",
        "192.0.0.9",
        "168.63.129.16",
        "100.100.100.200",
        "fd00:ec2::254",
        "fd20:ce::254",
        "::ffff:168.63.129.16",
        "2002:a83f:8110::",
        "64:ff9b::a83f:8110",
        "64:ff9b:1::c000:c0",
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


DRIPS = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Drip: 1\r\n"),
    "one header": (b"HTTP/1.1 200 OK\r\nX-Drip: ", b"1"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    "chunk extension": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"x"),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", b"X: 1\r\n"),
}


class Dripping:
    """A server that sends one byte after the other, and never comes to an end."""

    def __init__(self, start: bytes, drop: bytes) -> None:
        self.socket = socket.create_server((str(HERE), 0))
        self.done = threading.Event()
        self._start, self._drop = start, drop
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        line, _ = self.socket.accept()
        with line, suppress(OSError):
            line.recv(4096)
            line.sendall(self._start)
            while not self.done.wait(0.05):
                line.sendall(self._drop)

    @property
    def fetcher(self) -> Fetcher:
        port = self.socket.getsockname()[1]
        return Fetcher(
            max_bytes=10_000, timeout=1, allowed=HERE.__eq__, resolver=lambda *_: [HERE], ports={"http": port}
        )


@pytest.fixture
def dripping() -> Iterator[Callable[[str], Dripping]]:
    made: list[Dripping] = []

    def make(kind: str) -> Dripping:
        made.append(Dripping(*DRIPS[kind]))
        return made[-1]

    yield make
    for server in made:
        server.done.set()
        server.thread.join(5)
        server.socket.close()


@pytest.mark.parametrize("kind", DRIPS)
def test_the_time_covers_all_that_a_server_can_drip(dripping: Callable[[str], Dripping], kind: str):
    outcome: list[str] = []

    def fetch() -> None:
        try:
            dripping(kind).fetcher.fetch_now("http://here/a.jpg")
        except ImageError as error:
            outcome.append(str(error))

    worker = threading.Thread(target=fetch, daemon=True)
    worker.start()
    worker.join(10)
    assert outcome == ["http://here/a.jpg: took too long"]


def test_closing_does_not_wait_for_a_server(dripping: Callable[[str], Dripping]):
    fetcher = dripping("headers").fetcher
    fetcher.timeout = 60
    running = fetcher._threads.submit(fetcher.fetch_now, "http://here/a.jpg")
    while not fetcher._clocks:
        time.sleep(0.01)
    fetcher.close()
    with pytest.raises(ImageError):
        running.result(10)


def test_fetched_bytes_are_counted_as_they_come(site: ThreadingHTTPServer):
    taken: list[int] = []
    fetcher(site).fetch_now("http://here/100", taken.append)
    assert sum(taken) == 100

    def full(_: int) -> None:
        raise Problem.busy("full", 2)

    with pytest.raises(Problem):
        fetcher(site).fetch_now("http://here/100", full)


def test_fetched_bytes_count_towards_the_memory_of_requests():
    metrics = Metrics()
    memory = Memory(100, metrics)
    with memory.account() as one, memory.account() as other:
        one.take(60)
        with pytest.raises(Problem, match="memory for requests is full"):
            other.take(60)
    assert memory._held == 0
    with pytest.raises(Problem):  # a thread that is still at work for a request that is over
        one.take(1)
    assert memory._held == 0
