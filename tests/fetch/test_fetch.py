"""The guard for URLs from people and models: addresses by tables and properties, everything else over real sockets."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent import fetch
from agent.errors import InputError
from agent.fetch import Address, Guard, is_public, system_resolver
from tests.support.small_site import Asked, Site, answer, certificate, site, to, zipped

# --- addresses ------------------------------------------------------------------------------------------------------

PUBLIC = "1.1.1.1 8.8.8.8 93.184.216.34 100.63.255.255 100.128.0.1 172.15.1.1 172.32.0.1 192.0.3.1 223.255.255.254"
PUBLIC_V6 = "2606:4700::1111 2001:4860:4860::8888 2a00:1450:4001::1 2400:cb00::1"
PRIVATE = """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254 168.63.129.16
    169.254.0.23 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1
    198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
"""
PRIVATE_V6 = """
    :: ::1 fe80::1 fc00::1 fd00:ec2::254 fec0::1 ff02::1 100::1 2001::1 2001:2::1 2001:db8::1 3fff::1 5f00::1
    ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:7f00:1 ::127.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::8.8.8.8
    64:ff9b:1::a9fe:a9fe 2002:7f00:1:: 2002:808:808::1 2001:0:53aa:64c:0:0:5efe:1 2606:4700::5efe:7f00:1
    2606:4700::200:5efe:a00:1
"""


@pytest.mark.parametrize("text", [*PUBLIC.split(), *PUBLIC_V6.split()])
def test_address_is_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", [*PRIVATE.split(), *PRIVATE_V6.split()])
def test_address_is_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


NEAR = st.sampled_from([ip_address(text) for text in (*PRIVATE.split(), *PUBLIC.split())]).map(int)
V4 = st.one_of(
    st.integers(0, 2**32 - 1), st.builds(lambda near, off: (near + off) % 2**32, NEAR, st.integers(-300, 300))
).map(IPv4Address)


@given(V4)
def test_public_ipv4_is_global_in_stdlib(address: IPv4Address) -> None:
    if is_public(address):
        assert address.is_global
        assert not address.is_multicast


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
@example(IPv6Address("2001:4860:4860::8888"))
def test_public_ipv6_is_global_in_stdlib(address: IPv6Address) -> None:
    if is_public(address):
        assert address.is_global
        assert not any((address.is_multicast, address.ipv4_mapped, address.sixtofour, address.teredo))


@given(V4, st.sampled_from(["::ffff:0:0", "::", "64:ff9b::", "::ffff:0:0:0", "2606::5efe:0:0", "2606::200:5efe:0:0"]))
def test_ipv4_inside_ipv6_is_not_public(inside: IPv4Address, prefix: str) -> None:
    assert not is_public(IPv6Address(int(IPv6Address(prefix)) + int(inside)))


@given(V4)
def test_ipv4_behind_6to4_relay_is_not_public(inside: IPv4Address) -> None:
    assert not is_public(IPv6Address((0x2002 << 112) | (int(inside) << 80) | 1))


# --- connections -----------------------------------------------------------------------------------------------------


def names(*ways: Sequence[str], **known: str) -> Callable[[str, int], "asyncio.Future[Sequence[str]]"]:
    """Return a resolver: by `known` names, else by `ways` in turn (the last one repeats), else the system's."""
    turns = list(ways)

    async def resolve(host: str, port: int) -> Sequence[str]:
        if host in known:
            return known[host].split()
        if not turns:
            return await system_resolver(host, port)
        return turns.pop(0) if len(turns) > 1 else turns[0]

    return resolve  # pyright: ignore[reportReturnType]


def only(*public: str) -> Callable[[Address], bool]:
    """Return a rule that treats a few loopback addresses as the public internet."""
    return lambda address: str(address) in public


def open_to(*sites: Site, **more: object) -> Guard:
    """Return a guard that treats 127.0.0.1 as public, and these sites' ports as web ports."""
    given = {"public": only("127.0.0.1"), "ports": frozenset(one.port for one in sites), **more}
    return Guard(**given)  # pyright: ignore[reportArgumentType]


async def get(rules: Guard, url: str, *, most: int = 1000, seconds: float = 20) -> fetch.Fetched:
    return await rules.fetch(url, kinds=("text/*", "image/png"), max_bytes=most, seconds=seconds)


@pytest.fixture
async def here() -> AsyncIterator[Site]:
    async with site(hello=lambda _: answer("hello", kind="Text/Plain; charset=utf-8")) as opened:
        yield opened


async def test_allowed_url_is_fetched(here: Site) -> None:
    got = await get(open_to(here), f" {here.url}/hello?a=%2F ")
    assert (got.data, got.media_type, got.url) == (b"hello", "text/plain", f"{here.url}/hello?a=%2F")
    assert here.asked[0].headers["host"] == here.host


REFUSED = {
    "another scheme": "ftp://example.org/",
    "a file": "file:///etc/passwd",
    "data": "data:text/plain,hello",
    "no scheme": "example.org/",
    "no host": "http:///hello",
    "userinfo": "http://someone:secret@example.org/",
    "userinfo without a password": "http://127.0.0.1@example.org/",
    "a backslash": "http://example.org\\@127.0.0.1/",
    "a blank": "http://exam ple.org/",
    "a line": "http://example.org/\r\nHost: x",
    "a tab": "http://example\t.org/",
    "a bad port": "http://example.org:99999/",
    "another port": "http://example.org:22/",
    "very long": "http://example.org/" + "a" * 9000,
    "no such host": "http://nothing.invalid/",
    "bad brackets": "http://[::1/",
    "empty": "",
    "a label that is too long": f"http://{'a' * 70}.org/",
}
INSIDE = {
    "loopback": "127.0.0.1",
    "by name": "localhost",
    "octal": "0177.0.0.1",
    "hexadecimal": "0x7f.1",
    "one number": "2130706433",
    "short": "127.1",
    "zero": "0.0.0.0",
    "IPv6": "[::1]",
    "mapped": "[::ffff:127.0.0.1]",
    "mapped in hexadecimal": "[::ffff:7f00:1]",
    "with a zone": "[fe80::1%25lo]",
    "full width": "１２７.0.0.1",  # noqa: RUF001
    "a trailing dot": "localhost.",
    "metadata": "169.254.169.254",
}


@pytest.mark.parametrize("url", REFUSED.values(), ids=REFUSED)
async def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InputError) as refused:
        await get(Guard(resolve=names(["127.0.0.1"]) if "invalid" not in url else system_resolver), url)
    assert str(refused.value).endswith(".")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("host", INSIDE.values(), ids=INSIDE)
async def test_default_rules_reach_nothing_private(here: Site, host: str) -> None:
    rules = Guard(ports=frozenset({here.port}))
    with pytest.raises(InputError, match=r"public internet|no host|not a web address|Couldn't reach"):
        await get(rules, f"http://{host}:{here.port}/hello")
    assert here.asked == []


async def test_checked_address_is_connected_to(here: Site) -> None:
    """The name is resolved once for each fetch. The second, private answer counts only for the second fetch."""
    flips = open_to(here, resolve=names(["127.0.0.1"], ["127.0.0.2"]))
    assert (await get(flips, f"http://flip.example:{here.port}/hello")).data == b"hello"
    assert here.asked[0].headers["host"] == f"flip.example:{here.port}"
    with pytest.raises(InputError, match=r"flip.example is not on the public internet"):
        await get(flips, f"http://flip.example:{here.port}/hello")
    assert len(here.asked) == 1


async def test_private_address_among_several_is_not_tried(here: Site) -> None:
    rules = open_to(here, public=only("127.0.0.9", "127.0.0.1"), resolve=names(["127.0.0.2", "127.0.0.9", "127.0.0.1"]))
    assert (await get(rules, f"http://many.example:{here.port}/hello")).data == b"hello"  # nothing listens at .9
    with pytest.raises(InputError, match="public internet"):
        await get(
            open_to(here, public=only("1.1.1.1"), resolve=names(["127.0.0.1"])), f"http://m.example:{here.port}/hello"
        )


async def test_allowed_host_needs_exact_name_and_port(here: Site) -> None:
    assert (await get(Guard(allow=(here.host,)), f"{here.url}/hello")).data == b"hello"
    for other in (f"localhost:{here.port}", f"127.1:{here.port}", f"[::ffff:127.0.0.1]:{here.port}", "127.0.0.1:80"):
        with pytest.raises(InputError):
            await get(Guard(allow=(here.host,)), f"http://{other}/hello")


async def test_certificate_must_match_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = certificate(tmp_path, "secure.example")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(path)
    trusting = ssl.create_default_context(cafile=path)
    monkeypatch.setattr(fetch, "tls_context", lambda: trusting)
    async with site(serving, star=lambda _: answer("hello")) as there:
        rules = open_to(there, resolve=names(["127.0.0.1"]))
        assert (await get(rules, f"https://secure.example:{there.port}/")).data == b"hello"
        assert (await get(rules, f"https://secure.example.:{there.port}/")).data == b"hello"
        with pytest.raises(InputError, match=r"other.example failed: .*certificate"):
            await get(rules, f"https://other.example:{there.port}/")


# --- redirects ------------------------------------------------------------------------------------------------------


async def test_redirect_is_checked_and_carries_no_secrets() -> None:
    async with AsyncExitStack() as stack:
        inner = await stack.enter_async_context(site(star=lambda _: answer("inner secret")))
        public = await stack.enter_async_context(site())
        other = await stack.enter_async_context(
            site(end=lambda _: answer("end", headers={"Set-Cookie": "a=b"}), back=lambda _: to(f"{public.url}/three"))
        )
        public.handlers |= {
            "/private": lambda _: to(f"http://localhost:{inner.port}/"),
            "/deep": lambda _: to("/private"),
            "/away": lambda _: to(f"{other.url}/end", 307),
            "/back": lambda _: to(f"{other.url}/back"),
            "/relative": lambda _: answer(status=302, headers={"Location": "three", "Set-Cookie": "a=b"}),
            "/three": lambda asked: answer("three"),
            "/loop": lambda _: to("/loop"),
            "/scheme": lambda _: to("file:///etc/passwd"),
            "/login": lambda _: to(f"http://a:b@{public.host}/three"),
            "/broken": lambda _: to("http://[::1/"),
        }
        # The tool's owner allows `inner`, but its address is not public, so a redirect must not reach it.
        ports = frozenset({inner.port, public.port, other.port})
        rules = Guard(allow=(f"localhost:{inner.port}",), public=only("127.0.0.1"), ports=frozenset({public.port}))
        rules_both = Guard(public=only("127.0.0.1"), ports=ports, resolve=names(localhost="127.0.0.3"))
        for path in ("private", "deep"):
            with pytest.raises(InputError, match=f"Port {inner.port} of localhost"):
                await get(rules, f"{public.url}/{path}")
            with pytest.raises(InputError, match="localhost is not on the public internet"):
                await get(rules_both, f"{public.url}/{path}")
        assert inner.asked == []
        for path, sentence in {
            "loop": "redirects",
            "scheme": "begins with",
            "login": "user name",
            "broken": "no web",
        }.items():
            with pytest.raises(InputError, match=sentence):
                await get(rules_both, f"{public.url}/{path}")
        assert len([one for one in public.asked if one.target == "/loop"]) == rules.redirects + 1

        async def send(path: str, method: str = "GET") -> fetch.FetchResponse:
            headers = {"Authorization": "Bearer abc", "X-Key": "abc", "Accept": "text/plain"}
            url = f"{public.url}/{path}"
            return await rules_both.send(method, url, headers=headers, body=b"", max_bytes=100, seconds=20)

        def sent(asked: Asked) -> set[str]:
            return {"authorization", "x-key", "cookie"} & asked.headers.keys()

        assert (await send("away")).data == b"end"
        assert sent(public.asked[-1]) == {"authorization", "x-key"}
        assert sent(other.asked[-1]) == set()
        assert (await send("relative")).data == b"three"
        assert sent(public.asked[-1]) == {"authorization", "x-key"}
        assert (await send("back")).data == b"three"
        assert sent(public.asked[-1]) == set()  # secrets are not sent again after a redirect to a foreign host
        assert (await send("away", "POST")).status == 307


# --- answers ---------------------------------------------------------------------------------------------------------


async def endless(asked: Asked) -> AsyncIterator[bytes]:
    yield answer(headers={"Content-Length": "0"}).replace(b"Content-Length: 0\r\n", b"")
    while True:
        yield b"x" * 10_000


async def dripping(asked: Asked) -> AsyncIterator[bytes]:
    yield answer(headers={"Content-Length": "100000"})
    while True:
        yield b"x"
        await asyncio.sleep(0.02)


async def dripping_head(asked: Asked) -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X-A: b\r\n"
        await asyncio.sleep(0.02)


async def silent(asked: Asked) -> AsyncIterator[bytes]:
    await asyncio.sleep(600)
    yield b""


BOMB = gzip.compress(bytes(50_000_000))
BODIES = {
    "endless": (endless, "larger than 1,000 bytes"),
    "too long by one": (lambda _: answer(b"x" * 1001), "larger than"),
    "no length, too long": (lambda _: answer(b"x" * 1001).replace(b"Content-Length: 1001\r\n", b""), "larger than"),
    "says it is long": (lambda _: answer(headers={"Content-Length": str(10**12)}), "larger than"),
    "shorter than it says": (lambda _: answer(b"abc", headers={"Content-Length": "900"}), "web server"),
    "a length that is none": (lambda _: answer(b"abc", headers={"Content-Length": "-5"}), "web server"),
    "bomb": (lambda _: answer(BOMB[:900], headers={"Content-Encoding": "gzip"}), "larger than"),
    "broken off gzip": (
        lambda _: answer(gzip.compress(b"abc" * 99)[:-3], headers={"Content-Encoding": "gzip"}),
        "broke",
    ),
    "no gzip at all": (lambda _: answer(b"plain", headers={"Content-Encoding": "gzip"}), "broken"),
    "brotli": (lambda _: answer(b"x", headers={"Content-Encoding": "br"}), "'br'"),
    "twice": (lambda _: answer(b"x", headers={"Content-Encoding": "gzip, gzip"}), "gzip, gzip"),
    "deflate": (lambda _: answer(b"x", headers={"Content-Encoding": "deflate"}), "deflate"),
    "another kind": (lambda _: answer("<p>", kind="application/xhtml"), "application/xhtml"),
    "no kind": (lambda _: answer("x").replace(b"Content-Type: text/plain\r\n", b""), "octet-stream"),
    "an error": (lambda _: answer("no", status=500), "status 500"),
    "no HTTP": (lambda _: b"SSH-2.0-OpenSSH\r\n", "web server"),
    "nothing": (lambda _: b"", "web server"),
    "a huge head": (lambda _: answer("x", headers={"X": "y" * 300_000}), "web server|connection"),
}


@pytest.mark.parametrize(("said", "sentence"), BODIES.values(), ids=BODIES)
async def test_hostile_body_is_refused(said: Callable[[Asked], bytes], sentence: str) -> None:
    async with site(star=said) as there:
        with pytest.raises(InputError, match=sentence):
            await get(open_to(there), there.url)


GOOD = {
    "just small enough": (lambda _: answer(b"x" * 1000), b"x" * 1000),
    "gzip": (lambda _: zipped(b"x" * 1000), b"x" * 1000),
    "gzip in members": (
        lambda _: answer(gzip.compress(b"a") + b"\0\0" + gzip.compress(b"b"), headers={"Content-Encoding": "gzip"}),
        b"ab",
    ),
    "gzip of nothing": (lambda _: answer(b"", headers={"Content-Encoding": "gzip"}), b""),
    "more than it says": (lambda _: answer(b"abcdef", headers={"Content-Length": "3"}), b"abc"),
    "to the end": (lambda _: answer(b"abc").replace(b"Content-Length: 3\r\n", b""), b"abc"),
}


@pytest.mark.parametrize(("said", "data"), GOOD.values(), ids=GOOD)
async def test_good_body_is_read(said: Callable[[Asked], bytes], data: bytes) -> None:
    async with site(star=said) as there:
        assert (await get(open_to(there), there.url)).data == data


@given(st.binary(max_size=3000), st.lists(st.integers(1, 200), max_size=20), st.integers(0, 2000))
def test_gzip_expands_exactly_or_stops_at_limit(data: bytes, cuts: list[int], limit: int) -> None:
    packed, body = gzip.compress(data[:1000]) + gzip.compress(data[1000:]), fetch._Gzip(limit)
    for size in [*cuts, len(packed)]:
        body.feed(packed[:size])
        packed = packed[size:]
    assert len(body.data) <= limit + 1
    assert bytes(body.data) == data[: limit + 1]


@pytest.mark.parametrize("said", [dripping, dripping_head, silent], ids=["body", "head", "silence"])
async def test_slow_site_times_out(said: Callable[[Asked], AsyncIterator[bytes]]) -> None:
    async with site(star=said) as there:
        with pytest.raises(InputError, match=r"127.0.0.1 took longer than 0.5 s\."):
            await get(open_to(there), there.url, most=10**6, seconds=0.5)


async def test_slow_name_server_times_out() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        await asyncio.sleep(600)
        return []

    with pytest.raises(InputError, match=r"slow.example took longer"):
        await get(Guard(resolve=resolve), "http://slow.example/", seconds=0.2)


async def test_refused_connection_is_reported() -> None:
    async with site() as gone:
        rules = open_to(gone)
    with pytest.raises(InputError, match=r"The connection to 127.0.0.1 failed"):
        await get(rules, gone.url)


async def test_default_rules_are_the_public_ones(here: Site) -> None:
    with pytest.raises(InputError, match="not asked"):
        await fetch.fetch(f"{here.url}/hello", kinds=("*/*",), max_bytes=10, seconds=20)
    with pytest.raises(InputError, match="not on the public internet"):
        await fetch.fetch("http://127.0.0.1/", kinds=("*/*",), max_bytes=10, seconds=20)
