"""Decides under which host names a page is served and which origins can post to it. Knows only HTTP."""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from agent.web.middleware.requests import READ, RequestRefused, is_secure

PROBES = ("/healthz", "/readyz")
"""Supervisors request these paths under an address that is not known beforehand."""

_AUTHORITY = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?P<port>:\d{1,5})?", re.IGNORECASE)


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
