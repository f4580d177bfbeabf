"""Decides under which host names a page is served, which origins can post to it, and which headers protect it.

Knows only HTTP.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

from agent.web.middleware.requests import READ, RequestRefused, is_secure

PROBES = ("/healthz", "/readyz")
"""Supervisors request these paths under an address that is not known beforehand."""

_AUTHORITY = re.compile(r"(?P<name>[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?P<port>:\d{1,5})?", re.IGNORECASE)


class Origins:
    """The host names of this page. Owns the set of names, to which a share link is added once it is open.

    With `any_host` every name is served, for a page with names that only its proxy knows. Otherwise an unlisted name is
    refused, unless it is a loopback name. A hostile page could point its own name at this machine and would then be
    same-origin with this page (DNS rebinding).
    """

    def __init__(self, names: Iterable[str] = (), *, any_host: bool = True) -> None:
        self._names = {name.lower() for name in names}
        self._any = any_host

    def add(self, url: str) -> None:
        """Also serve the page under the host of this URL."""
        if name := urlsplit(url).hostname:
            self._names.add(name)

    def check(self, scope: Scope) -> None:
        """Raise `RequestRefused` for an unknown host name, or for a change that a foreign page requests."""
        headers = Headers(scope=scope)
        values = [value for name in ("host", "x-forwarded-host") if (value := headers.get(name)) is not None]
        hosts = [value.split(",")[0].strip().lower() for value in values]
        found = [_AUTHORITY.fullmatch(host) for host in hosts]
        if any(match is None or int((match["port"] or ":0")[1:]) > 65535 for match in found):
            raise RequestRefused(400)
        named = [match["name"] for match in found if match]
        if scope["path"] not in PROBES and not all(self._is_served(name) for name in named):
            raise RequestRefused(421)
        if scope["method"] not in READ and is_foreign(headers):
            raise RequestRefused(403)
        origin = headers.get("origin")
        if scope["method"] not in READ and origin is not None and not self._owns(origin, hosts, is_secure(scope)):
            raise RequestRefused(403)

    def _is_served(self, name: str) -> bool:
        return self._any or name in self._names or is_loopback(name)

    def _owns(self, origin: str, hosts: list[str], secure: bool) -> bool:
        """Return True if the origin is the page's own: the host that the request was sent to, or a listed name."""
        try:
            parts = urlsplit(origin.lower())
            port = parts.port
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not parts.hostname or (secure and parts.scheme != "https"):
            return False
        usual = port in (None, 443 if parts.scheme == "https" else 80)
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        own = {name, f"{name}:{443 if parts.scheme == 'https' else 80}"} if usual else {f"{name}:{port}"}
        return not own.isdisjoint(hosts) or (usual and name in self._names)


def is_foreign(headers: Headers) -> bool:
    """Return True if the browser says that a page of another site made the request."""
    return headers.get("sec-fetch-site") in ("cross-site", "same-site")


def is_loopback(name: str) -> bool:
    """Return True if a host name or address belongs to this machine and nobody else can redefine it."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


FRAMERS = ("https://huggingface.co",)
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "font-src 'self' data:",
        "form-action 'self'",
        "base-uri 'self'",
        "object-src 'none'",
        "frame-src 'none'",  # what runs in a frame is in the page, and must not load another address there
        " ".join(("frame-ancestors 'self'", *FRAMERS)),  # last, because more framers may be appended
    )
)


def policy_with(site: str) -> str:
    """Return the policy that also allows to load scripts and data from this folder of another site, if it is not ""."""
    policy = POLICY
    for part in ("script-src 'self'", "connect-src 'self'") if site else ():
        policy = policy.replace(part, f"{part} {site}", 1)
    return policy


SELF_ONLY = ("autoplay", "camera", "clipboard-read", "clipboard-write", "fullscreen", "microphone")
"""Features that the page uses: camera and microphone to attach, clipboard to copy and paste, full-screen images."""
OFF = (
    "accelerometer", "bluetooth", "browsing-topics", "display-capture",
    "encrypted-media", "gamepad", "geolocation", "gyroscope", "hid", "idle-detection", "local-fonts", "magnetometer",
    "midi", "payment", "picture-in-picture", "publickey-credentials-create", "publickey-credentials-get",
    "screen-wake-lock", "serial", "storage-access", "usb", "window-management", "xr-spatial-tracking",
)  # fmt: skip
DOCUMENT_HEADERS = (
    ("permissions-policy", ", ".join((*(f"{one}=(self)" for one in SELF_ONLY), *(f"{one}=()" for one in OFF)))),
    # Applies to a page in its own window, not in a frame. A login comes back in the same window.
    ("cross-origin-opener-policy", "same-origin"),
)
HEADERS = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),  # or another port of this host could show what is cached
)
STREAMED = ("text/event-stream", "application/x-ndjson")
"""Types of answers that a proxy must pass on piece by piece."""
NO_DOCUMENTS = ("text/javascript", "text/css", "application/wasm", "application/zip")
SESSION = b"session="
"""The cookie in which Gradio keeps a login."""


class SecurityHeadersSend:
    """An ASGI `send` that adds the headers and `cookies` to the response, wherever it comes from."""

    def __init__(self, send: Send, policy: str) -> None:
        self._send, self._policy = send, policy
        self.cookies: list[str] = []
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message["headers"] = [_partitioned(*pair) for pair in message.get("headers", [])]
            headers = MutableHeaders(scope=message)
            is_document = not headers.get("content-type", "").startswith(NO_DOCUMENTS)
            if is_document:
                headers.append("content-security-policy", self._policy)  # beside the route's own: a browser obeys both
            for name, value in (*HEADERS, *(DOCUMENT_HEADERS if is_document else ())):
                headers[name] = value
            headers.setdefault("cache-control", "private")
            del headers["access-control-allow-credentials"]  # Gradio would let any site read with a visitor's cookies
            if is_document or headers.get("access-control-allow-origin") != "*":  # any site may read a static script
                del headers["access-control-allow-origin"]
            if headers.get("content-type", "").startswith(STREAMED):
                headers["x-accel-buffering"] = "no"
            for cookie in self.cookies:
                headers["cache-control"] = "no-store"
                headers.append("set-cookie", cookie)
        await self._send(message)


def _partitioned(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return the header. Gradio's session cookie becomes partitioned, so that browsers keep it in a frame."""
    return name, value + b"; Partitioned" if name == b"set-cookie" and value.startswith(SESSION) else value
