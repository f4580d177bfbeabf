"""Guarded requests to URLs that people and models give: limits on addresses, media types, size and time.

A host name is looked up once, the resulting addresses are checked, and the connection goes to exactly the checked
address: a different DNS answer a moment later changes nothing. A redirect is checked like any other URL. The
environment's proxies are not used, because nobody can tell which address a proxy connects to.
"""

import asyncio
import re
import socket
import ssl
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import cast

import httpx2

from agent.errors import InputError, reason_of
from agent.i18n.text import _
from agent.keyword_arguments import explains_fields

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_URL = 8_000
CONNECT_SECONDS = 5.0
"""Seconds to wait for a connection to one address of a host before the next one is tried."""

Address = IPv4Address | IPv6Address

_NO_HOST_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private, as are 172.16 and 192.168
            "100.64.0.0/10",  # carriers' address translation; a cloud's metadata lies in it
            "127.0.0.0/8",  # this machine
            "168.63.129.16/32",  # a cloud's own channel to its machines, at an address that looks public
            "169.254.0.0/16",  # this link, with the metadata of most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation, as are 198.51.100 and 203.0.113
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",  # multicast, reserved, broadcast
        ),
    )
)
_HOSTS_V6 = IPv6Network("2000::/3")
"""All addresses that were ever given to hosts. Mapped, translated and NAT64 addresses lie outside."""
_NO_HOST_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, such as Teredo
            "2001:db8::/32",  # documentation, as is 3fff
            "2002::/16",  # 6to4
            "3fff::/20",
        ),
    )
)
_ISATAP = (bytes.fromhex("00005efe"), bytes.fromhex("02005efe"))
"""The bytes in front of the IPv4 address in an ISATAP address."""


def is_public(address: Address) -> bool:
    """Return True if this is the address of one host on the public internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NO_HOST_V4)
    if address.packed[8:12] in _ISATAP or address not in _HOSTS_V6:
        return False
    return not any(address in network for network in _NO_HOST_V6)


_lookups = ThreadPoolExecutor(8, thread_name_prefix="dns")
"""Name lookups have their own threads: a slow name server must not delay files and stores."""


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """Return the addresses that this machine finds for a host. Raises `OSError` if there are none."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_lookups, look_up)
    return [str(address[0]) for *_, address in found]


@dataclass(frozen=True)
class Fetched:
    """The content of a URL. `url` is the address after all redirects; `media_type` comes from the server."""

    data: bytes
    media_type: str
    url: str


@dataclass(frozen=True)
class FetchResponse:
    """A server's answer, whatever its status. `content_type` can be empty."""

    status: int
    content_type: str
    data: bytes

    @property
    def media_type(self) -> str:
        """The content type without its parameters."""
        return _media_type(self.content_type)


@explains_fields
@dataclass(frozen=True)
class Guard:
    """The rules: `public` checks an address, `resolve` finds the addresses of a host, `ports` are the allowed ones.

    `allow` lists hosts that the owner trusts, such as "127.0.0.1:8000", whatever their address and port. The host must
    match exactly. A redirect from another host cannot lead there.
    """

    allow: tuple[str, ...] = ()
    public: Callable[[Address], bool] = is_public
    resolve: Resolver = system_resolver
    ports: frozenset[int] = frozenset({80, 443, 8080, 8443})
    redirects: int = 5

    def __post_init__(self) -> None:
        if isinstance(cast(object, self.allow), str):  # which would allow each host that is a part of it
            raise InputError(f'allow takes several hosts: write Guard(allow=("{self.allow}",))')

    def trusting(self, url: str) -> "Guard":
        """Return a guard that also allows the host of this URL, at its port. Raises `InputError`."""
        return replace(self, allow=(*self.allow, _authority(self._parse_url(url))))

    async def fetch(self, url: str, *, kinds: Sequence[str], max_bytes: int, seconds: float) -> Fetched:
        """Return the content of `url` if its media type is one of `kinds`, such as "image/png" or "image/*".

        Raises `InputError` with a sentence for every failure.
        """
        async with self._sentences(url, seconds), self._open("GET", url, {"Accept": ", ".join(kinds)}, b"") as opened:
            target, response = opened
            if response.status_code != 200:
                raise InputError(
                    _("{host} answered with status {status}.", host=target.host, status=response.status_code)
                )
            kind = _media_type(response.headers.get("content-type", ""))
            if not any(fnmatchcase(kind, pattern) for pattern in kinds):
                if any(pattern.startswith("image/") for pattern in kinds):
                    raise InputError(_("{host} sent {kind}, not an image.", host=target.host, kind=repr(kind[:100])))
                raise InputError(
                    _(
                        "{host} gave {kind}; wanted is {wanted}.",
                        host=target.host,
                        kind=repr(kind[:100]),
                        wanted=" or ".join(kinds),
                    )
                )
            return Fetched(await _read(response, target.host, max_bytes), kind, str(target))

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes, max_bytes: int, seconds: float
    ) -> FetchResponse:
        """Send a request and return the answer. Only a GET follows redirects; another origin gets only `Accept`.

        Raises `InputError` as `fetch` does, but not for the answer's status.
        """
        async with self._sentences(url, seconds), self._open(method, url, headers, body) as (target, response):
            data = await _read(response, target.host, max_bytes)
            return FetchResponse(response.status_code, response.headers.get("content-type", ""), data)

    @asynccontextmanager
    async def _sentences(self, url: str, seconds: float) -> AsyncGenerator[None]:
        """Limit the time and turn failures into sentences. They name only the host: the rest can hold secrets."""
        host = self._parse_url(url).host
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise InputError(_("{host} took longer than {seconds:g} s.", host=host, seconds=seconds)) from error
        except (httpx2.NetworkError, httpx2.TimeoutException) as error:
            raise InputError(
                _("The connection to {host} failed: {error}.", host=host, error=reason_of(error))
            ) from error
        except httpx2.LocalProtocolError as error:  # its own text repeats a header, with secrets
            raise InputError(_("The request for {host} is none that HTTP can carry.", host=host)) from error
        except httpx2.HTTPError as error:
            raise InputError(
                _("{host} did not answer as a web server should: {error}.", host=host, error=str(error))
            ) from error

    @asynccontextmanager
    async def _open(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[tuple[httpx2.URL, httpx2.Response]]:
        """Yield the final URL and the answer behind all redirects. Its body has not been read."""
        target, trusted = self._parse_url(url), True
        certificates = await asyncio.to_thread(tls_context)
        async with httpx2.AsyncHTTPTransport(verify=certificates, trust_env=False) as transport:
            for _hop in range(self.redirects + 1):
                response = await self._ask(transport, method, target, headers, body, trusted=trusted)
                try:
                    if method != "GET" or not response.has_redirect_location:
                        yield target, response
                        return
                finally:
                    await response.aclose()
                before, target = target, self._parse_url(str(_resolve_redirect(target, response.headers["location"])))
                if (before.scheme, before.host, before.port) != (target.scheme, target.host, target.port):
                    headers, trusted = {name: headers[name] for name in ("Accept",) if name in headers}, False
        raise InputError(
            _("{host} was reached after more than {most} redirects.", host=target.host, most=self.redirects)
        )

    async def _ask(
        self,
        transport: httpx2.AsyncHTTPTransport,
        method: str,
        target: httpx2.URL,
        headers: Mapping[str, str],
        body: bytes,
        *,
        trusted: bool,
    ) -> httpx2.Response:
        """Send one request to the first reachable address of its host."""
        failure: httpx2.HTTPError | None = None
        for address in await self._addresses(target, trusted=trusted):
            request = httpx2.Request(
                method,
                target.copy_with(host=str(address)),
                headers={"Host": target.netloc.decode(), "Accept-Encoding": "gzip", "User-Agent": "switchboard"}
                | dict(headers),
                content=body or None,
                # The certificate must be for this name, and a server with many names chooses by it.
                extensions={"sni_hostname": target.host.rstrip("."), "timeout": {"connect": CONNECT_SECONDS}},
            )
            try:
                return await transport.handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
        raise failure or _no_host(target.host)

    def private_host(self, url: str) -> str:
        """Return the host and port of a URL that names a private address or this machine; "" for any other.

        Looks no name up, so a name that leads to a private address is found only by `fetch`. Raises `InputError`.
        """
        target = self._parse_url(url)
        if _authority(target) in self.allow:
            return ""
        host = target.host.rstrip(".")
        try:
            private = not self.public(ip_address(host.partition("%")[0]))
        except ValueError:  # a name
            private = host == "localhost" or host.endswith(".localhost")
        return _authority(target) if private else ""

    async def _addresses(self, target: httpx2.URL, *, trusted: bool) -> list[Address]:
        """Return a host's allowed addresses, [] if the lookup finds none. Raises `InputError` if none is allowed."""
        host, port = target.host, _port(target)
        exempt = trusted and _authority(target) in self.allow
        if not exempt and port not in self.ports:
            known = ", ".join(map(str, sorted(self.ports)))
            raise InputError(
                _("Port {port} of {host} is not asked; the ports that are: {known}.", host=host, port=port, known=known)
            )
        try:
            found = await self.resolve(host.rstrip("."), port)
        except (OSError, UnicodeError) as error:
            raise _no_host(host) from error
        addresses = list(dict.fromkeys(ip_address(one.partition("%")[0]) for one in found))
        usable = [one for one in addresses if exempt or self.public(one)]
        if addresses and not usable:
            raise InputError(_("{host} is not on the public internet, so nothing is fetched from it.", host=host))
        return usable

    def _parse_url(self, url: str) -> httpx2.URL:
        """Parse the URL with the parser that the connection uses, too. Raises `InputError`."""
        url = url.strip()
        if len(url) > MAX_URL:
            raise InputError(_("The web address is longer than {most} characters.", most=MAX_URL))
        if re.search(r"[\x00-\x20\x7f\\]", url):  # parsers differ on these characters
            raise InputError(_("The web address has a blank, a backslash or a control character in it."))
        try:
            target = httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError) as error:
            raise InputError(_("This is not a web address: {error}.", error=str(error))) from error
        if target.scheme not in ("http", "https") or not target.host:
            raise InputError(_("A web address begins with http:// or https:// and the name of a host."))
        if target.userinfo:
            raise InputError(_("A web address with a user name or a password in it is not fetched."))
        return target


GUARD = Guard()
"""The default rules for addresses from people and models."""


async def fetch(url: str, *, kinds: Sequence[str], max_bytes: int, seconds: float) -> Fetched:
    """Call `Guard.fetch` with the default rules: public addresses only."""
    return await GUARD.fetch(url, kinds=kinds, max_bytes=max_bytes, seconds=seconds)


def _port(target: httpx2.URL) -> int:
    return target.port or (443 if target.scheme == "https" else 80)


def _authority(target: httpx2.URL) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{host}:{_port(target)}"


def _resolve_redirect(target: httpx2.URL, location: str) -> httpx2.URL:
    try:
        return target.join(location)
    except (httpx2.InvalidURL, ValueError) as error:
        raise InputError(_("{host} redirects to what is no web address.", host=target.host)) from error


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower() or "application/octet-stream"


async def _read(response: httpx2.Response, host: str, limit: int) -> bytes:
    """Return the body, at most `limit` bytes both on the wire and expanded."""
    too_large = InputError(_("The file from {host} is larger than {most:,} bytes.", host=host, most=limit))
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity", "gzip", "x-gzip"):  # the size of others cannot be limited while they expand
        raise InputError(
            _("{host} compresses its answer by {coding}, which was not asked for.", host=host, coding=repr(coding[:40]))
        )
    declared = response.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_large
    body = _Gzip(limit) if "gzip" in coding else _Plain()
    on_the_wire = 0
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    async for chunk in response.stream:
        on_the_wire += len(chunk)
        try:
            body.feed(chunk)
        except zlib.error as error:
            raise InputError(_("{host} sent compressed data that is broken.", host=host)) from error
        if max(on_the_wire, len(body.data)) > limit:
            raise too_large
    if not body.is_complete:
        raise InputError(_("{host} broke off its compressed answer.", host=host))
    return bytes(body.data)


class _Plain:
    is_complete = True

    def __init__(self) -> None:
        self.data = bytearray()

    def feed(self, chunk: bytes) -> None:
        self.data += chunk


class _Gzip:
    """Expands the members of a gzip body, at most one byte beyond the limit."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self._limit = limit
        self._member: zlib._Decompress | None = None  # pyright: ignore[reportPrivateUsage]  its type has no other name

    @property
    def is_complete(self) -> bool:
        return self._member is None or self._member.eof

    def feed(self, chunk: bytes) -> None:
        while chunk and len(self.data) <= self._limit:
            if self._member is None or self._member.eof:
                chunk = chunk.lstrip(b"\0")  # padding between members
                if not chunk:
                    return
                self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
            self.data += self._member.decompress(chunk, self._limit + 1 - len(self.data))
            chunk = self._member.unused_data


@cache
def tls_context() -> ssl.SSLContext:
    """Return the trusted certificates. Reading them takes 100 ms of CPU, so it is done once."""
    return httpx2.create_ssl_context()


def _no_host(host: str) -> InputError:
    return InputError(_("Couldn't reach {host}.", host=host))
