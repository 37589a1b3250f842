"""Pictures by address, for a service that must not become a way into the network it stands in.

The name is resolved once, every address it has must be public, and the connection goes to the address that was
checked: a name that answers differently the second time gains nothing. Redirects are followed by the same rules. Proxy
settings of the environment are not used, since a proxy would resolve the name again.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias
from urllib.parse import SplitResult, urljoin, urlsplit

from recap import __version__
from recap.errors import ImageError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
PORTS = {"http": 80, "https": 443}
REDIRECTS = 3
CHUNK = 64 * 1024
MAX_LENGTH = 2000
NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Tell whether an address is one of the open internet, and no other is hidden inside it."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved and not address.is_unspecified


def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


class Fetcher:
    """Fetches pictures with a limit on bytes and time.

    Args:
        max_bytes: so large a picture may be.
        timeout: seconds for all of it, redirects included.
        allowed: which addresses may be connected to.
        resolver: finds the addresses of a name.
        ports: the port of each scheme; no other is connected to.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        timeout: float,
        allowed: Callable[[Address], bool] = is_public,
        resolver: Callable[[str, int], Sequence[Address]] = resolve,
        ports: dict[str, int] = PORTS,
    ) -> None:
        self.max_bytes = max_bytes
        self.timeout = timeout
        self._allowed = allowed
        self._resolve = resolver
        self._ports = ports
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="recap-fetch")

    async def fetch(self, url: str) -> bytes:
        """Return what lies at an address, or raise ``ImageError``."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.fetch_now, url)

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def fetch_now(self, url: str) -> bytes:
        """Do the work of ``fetch`` in this thread."""
        deadline = time.monotonic() + self.timeout
        for _ in range(REDIRECTS + 1):
            target = self._checked(url)
            content, location = self._get(target, deadline)
            if location is None:
                return content
            url = urljoin(url, location)
        raise ImageError(f"{_short(url)}: more than {REDIRECTS} redirects")

    def _checked(self, url: str) -> SplitResult:
        try:
            if len(url) > MAX_LENGTH or not url.isascii() or not url.isprintable() or " " in url:
                raise ValueError("not an address")
            target = urlsplit(url)
            port = target.port
        except ValueError as error:
            raise ImageError(f"{_short(url)}: not an address that can be fetched") from error
        if target.scheme not in self._ports or not target.hostname:
            raise ImageError(f"{_short(url)}: only addresses of {' and '.join(self._ports)} are fetched")
        if target.username is not None or target.password is not None:
            raise ImageError(f"{_short(url)}: an address must not hold a user name")
        if port not in (None, self._ports[target.scheme]):
            raise ImageError(f"{_short(url)}: only the usual port of {target.scheme} is fetched from")
        return target

    def _get(self, target: SplitResult, deadline: float) -> tuple[bytes, str | None]:
        """Return the content, or where it is instead."""
        url = target.geturl()
        connection = self._connect(target, deadline)
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
                raise ImageError(f"{_short(url)}: the answer was {response.status}")
            return self._body(url, connection, response, deadline), None
        except (OSError, http.client.HTTPException) as error:
            raise ImageError(f"{_short(url)}: cannot be fetched ({type(error).__name__})") from error
        finally:
            connection.close()

    def _body(
        self, url: str, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float
    ) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            if connection.sock is not None:
                connection.sock.settimeout(_left(url, deadline))
            piece = response.read1(CHUNK)
            _left(url, deadline)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if size > self.max_bytes:
                raise ImageError(f"{_short(url)}: larger than {self.max_bytes} bytes")

    def _connect(self, target: SplitResult, deadline: float) -> http.client.HTTPConnection:
        """Connect to an address that was looked at, not to a name that may change its mind."""
        url, host, port = target.geturl(), target.hostname or "", self._ports[target.scheme]
        try:
            addresses = self._resolve(host, port)
        except (OSError, UnicodeError, ValueError) as error:
            raise ImageError(f"{_short(url)}: there is no such host") from error
        if not addresses or not all(map(self._allowed, addresses)):
            raise ImageError(f"{_short(url)}: not a public address")
        connection = http.client.HTTPConnection(host, port)
        try:
            raw = socket.create_connection((str(addresses[0]), port), timeout=_left(url, deadline))
            if target.scheme == "https":
                raw = ssl.create_default_context().wrap_socket(raw, server_hostname=host)
        except OSError as error:
            raise ImageError(f"{_short(url)}: cannot be fetched ({type(error).__name__})") from error
        connection.sock = raw
        return connection


def _left(url: str, deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise ImageError(f"{_short(url)}: took too long")
    return left


def _short(url: str) -> str:
    """Return an address for messages, without its query, which may hold a secret."""
    shown = "".join(character for character in url.partition("?")[0] if character.isprintable())
    return shown if len(shown) <= 100 else f"{shown[:100]}..."
