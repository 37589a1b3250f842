"""Pictures by address, with limits on bytes, time, redirects and kind of content.

A service must not become a way into the network it stands in: the name is resolved once, every address it has must be
public, and the connection goes to the address that was checked, so that a name that answers differently the second time
gains nothing. Redirects are followed by the same rules. Proxy settings of the environment are not used, since a proxy
would resolve the name again.

What a user of the library or the command line names may lie in a network of their own, and on any port; where it
redirects to another host, the rules of the service hold.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import TypeAlias
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from recap import __version__
from recap.encoders.inputs import short_url
from recap.errors import ImageError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Take: TypeAlias = Callable[[int], None]
"""Receives the number of bytes that came, and raises when there is no room for them."""
Known: TypeAlias = dict[str, Sequence[Address]]
"""The addresses of the names that were met on the way to a picture."""
PORTS = {"http": 80, "https": 443}
CHUNK = 64 * 1024
MAX_REDIRECTS = 3
MAX_URL = 2000
"""Characters of an address."""
MAX_BYTES = 64 << 20
"""Size of a picture that the library fetches."""
SECONDS = 30.0
"""Time for one that the library fetches, redirects included."""
NAT64 = ipaddress.ip_network("64:ff9b::/96")
DENIED = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.0.0.0/24",  # protocol assignments: the metadata of Oracle's cloud among them
            "168.63.129.16/32",  # Azure's platform
            "100.100.100.200/32",  # Alibaba's metadata
            "169.254.0.0/16",  # everybody else's metadata
            "fd00:ec2::/32",  # Amazon's, and Oracle's
            "fd20:ce::/32",  # Google's
            "64:ff9b:1::/48",  # translation to private addresses
        ),
    )
)
"""Addresses that Python takes for public, or once did, behind which are the platforms of clouds."""


def is_public(address: Address) -> bool:
    """Tell whether an address is one of the open internet, and no other is hidden inside it."""
    if (inner := _inner(address)) is not None:
        return is_public(inner)
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return False
    return (
        is_no_platform(address)
        and address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
    )


def is_no_platform(address: Address) -> bool:
    """Tell whether an address may be one that the user named: any but those of the platforms of clouds."""
    inner = _inner(address) or address
    return not any(inner in network for network in DENIED)


def _inner(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that is hidden in an address of IPv6."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


class Fetcher:
    """Fetches pictures with a limit on bytes and time.

    Args:
        max_bytes: size of a picture.
        timeout: seconds for all of it, redirects included.
        allowed: which addresses may be connected to.
        resolver: finds the addresses of a name.
        ports: the port of each scheme; no other is connected to.
        trusted: whether what is asked for is the word of the user: it may have any address and port.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        timeout: float,
        allowed: Callable[[Address], bool] = is_public,
        resolver: Callable[[str, int], Sequence[Address]] = resolve,
        ports: dict[str, int] = PORTS,
        trusted: bool = False,
    ) -> None:
        self.max_bytes = max_bytes
        self.timeout = timeout
        self._allowed = allowed
        self._resolve = resolver
        self._ports = ports
        self._trusted = trusted
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="recap-fetch")
        self._clocks: set[_Clock] = set()
        self._closed = False

    async def fetch(self, url: str, take: Take = lambda _: None) -> bytes:
        """Return what lies at an address, or raise ``ImageError``."""
        import asyncio  # a good part of what importing this module would take

        return await asyncio.get_running_loop().run_in_executor(self._threads, self.fetch_now, url, take)

    def close(self) -> None:
        """Let the threads go, whatever they are waiting for."""
        self._closed = True
        for clock in list(self._clocks):
            clock.cut()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def fetch_now(self, url: str, take: Take = lambda _: None) -> bytes:
        """Do the work of ``fetch`` in this thread."""
        deadline = time.monotonic() + self.timeout
        host = self._parse_url(url, self._trusted).hostname if self._trusted else None
        known: Known = {}
        for _ in range(MAX_REDIRECTS + 1):
            trusted = host is not None and _host_of(url) == host
            target = self._parse_url(url, trusted)
            content, location = self._get(target, deadline, take, trusted, known)
            if location is None:
                return content
            url = urljoin(url, location)
        raise ImageError(f"{short_url(url)}: more than {MAX_REDIRECTS} redirects")

    def _parse_url(self, url: str, trusted: bool) -> SplitResult:
        try:
            if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
                raise ValueError("not an address")
            target = urlsplit(url)
            port = target.port
        except ValueError as error:
            raise ImageError(f"{short_url(url)}: not an address that can be fetched") from error
        if target.scheme not in self._ports or not target.hostname:
            raise ImageError(f"{short_url(url)}: only addresses of {' and '.join(self._ports)} are fetched")
        if target.username is not None or target.password is not None:
            raise ImageError(f"{short_url(url)}: an address must not hold a user name")
        if not trusted and port not in (None, self._ports[target.scheme]):
            raise ImageError(f"{short_url(url)}: only the usual port of {target.scheme} is fetched from")
        return target

    def _get(
        self, target: SplitResult, deadline: float, take: Take, trusted: bool, known: Known
    ) -> tuple[bytes, str | None]:
        """Return the content, or where it is instead."""
        url = target.geturl()
        raw = self._connect(target, deadline, trusted, known)
        try:
            with self._time_limit(raw, _seconds_left(url, deadline)):
                return self._send(target, raw, deadline, take)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, ImageError):
                raise
            _seconds_left(url, deadline)
            raise ImageError(f"{short_url(url)}: cannot be fetched ({_reason(error)})") from error
        finally:
            raw.close()

    def _send(self, target: SplitResult, raw: socket.socket, deadline: float, take: Take) -> tuple[bytes, str | None]:
        url, host = target.geturl(), target.hostname or ""
        connection = http.client.HTTPConnection(host)
        connection.sock = raw
        if target.scheme == "https":
            connection.sock = ssl.create_default_context().wrap_socket(raw, server_hostname=host)
        try:
            path = (target.path or "/") + (f"?{target.query}" if target.query else "")
            headers = {
                "Host": target.netloc,
                "User-Agent": f"recap/{__version__}",
                "Accept": "image/*",
                "Accept-Encoding": "identity",
            }
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            location = response.headers.get("Location")
            if response.status in (301, 302, 303, 307, 308) and location:
                return b"", location
            if response.status != 200:
                raise ImageError(f"{short_url(url)}: the answer was {response.status}")
            _check_kind(url, response.headers.get("Content-Type", ""))
            return self._read_body(url, response, deadline, take), None
        finally:
            connection.close()

    def _read_body(self, url: str, response: http.client.HTTPResponse, deadline: float, take: Take) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            piece = response.read1(CHUNK)
            # what ends because the line was cut is not complete
            _seconds_left(url, deadline)
            if self._closed:
                raise ImageError(f"{short_url(url)}: the service is stopping")
            if not piece:
                return b"".join(pieces)
            take(len(piece))
            pieces.append(piece)
            size += len(piece)
            if size > self.max_bytes:
                raise ImageError(f"{short_url(url)}: larger than {self.max_bytes} bytes")

    def _connect(self, target: SplitResult, deadline: float, trusted: bool, known: Known) -> socket.socket:
        """Connect to an address that was looked at, not to a name that may change its mind, even when redirected."""
        url, host = target.geturl(), target.hostname or ""
        port = (target.port if trusted else None) or self._ports[target.scheme]
        try:
            addresses = known[host] = known.get(host) or self._resolve(host, port)
        except (OSError, UnicodeError, ValueError) as error:
            raise ImageError(f"{short_url(url)}: there is no such host") from error
        if not addresses or not all(map(is_no_platform if trusted else self._allowed, addresses)):
            raise ImageError(f"{short_url(url)}: not a public address")
        try:
            return socket.create_connection((str(addresses[0]), port), timeout=_seconds_left(url, deadline))
        except OSError as error:
            raise ImageError(f"{short_url(url)}: cannot be fetched ({_reason(error)})") from error

    @contextmanager
    def _time_limit(self, raw: socket.socket, seconds: float) -> Iterator[None]:
        """Cut the line when the time is over: a server that drips never lets a timeout of one read come."""
        clock = _Clock(raw, seconds)
        self._clocks.add(clock)
        try:
            yield
        finally:
            self._clocks.discard(clock)
            clock.stop()


class _Clock:
    """Cuts a connection after some time, in the middle of whatever is read."""

    def __init__(self, raw: socket.socket, seconds: float) -> None:
        # a number of its own: TLS takes the socket over
        self._line = raw.dup()
        self._timer = threading.Timer(seconds, self.cut)
        self._timer.daemon = True
        self._timer.start()

    def cut(self) -> None:
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._timer.cancel()
        self._line.close()


@cache
def _library_fetcher() -> Fetcher:
    return Fetcher(max_bytes=MAX_BYTES, timeout=SECONDS, trusted=True)


def fetch_picture(url: str) -> bytes:
    """Return what lies at an address that the user named, or raise ``ImageError``."""
    # people copy addresses with letters and spaces that have to be escaped
    return _library_fetcher().fetch_now(quote(url.partition("#")[0], safe="%/:?&=+,;@!$'()*~[]"))


def _check_kind(url: str, content_type: str) -> None:
    """Refuse an answer that says it is no picture; servers that do not know say octet-stream, or nothing."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind and not kind.startswith("image/") and not kind.endswith("octet-stream"):
        shown = "".join(character for character in kind[:50] if character.isprintable())
        raise ImageError(f"{short_url(url)}: not a picture but {shown}")


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _reason(error: Exception) -> str:
    """Return why a connection failed, in words of ours."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate cannot be verified"
    if isinstance(error, ssl.SSLError):
        return "no secure connection"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, http.client.HTTPException):
        return "the answer is no HTTP"
    return "the connection broke off" if isinstance(error, ConnectionError) else "the host cannot be reached"


def _seconds_left(url: str, deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise ImageError(f"{short_url(url)}: took too long")
    return left
