"""The network address that a request comes from, for limits: only where nobody can make it up.

A client can send any `X-Forwarded-For`, to which each proxy appends the address that it saw. uvicorn follows that list
as far as it knows the proxies. Where every sender is taken for a proxy, as on a Space, it would believe the first
entry, which is the client's own; there only the last one counts.
"""

import logging
from ipaddress import IPv6Address, IPv6Network, ip_address
from time import monotonic
from typing import cast

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

ANY = "*"
WARNING_SECONDS = 3600.0
"""Between two log lines about a proxy that is not known; anybody can cause one."""
HOME = 64
"""Bits of an IPv6 address that name a subscriber; the others they choose themselves."""


class ClientAddressMiddleware:
    """The middleware that notes the address. `any_proxy`: requests come through a proxy whose address is not known."""

    def __init__(self, app: ASGIApp, *, any_proxy: bool) -> None:
        self._app, self._any_proxy = app, any_proxy
        self._warned = -WARNING_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the address in the request's state."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["address"] = resolve_address(scope, any_proxy=self._any_proxy)
            if not self._any_proxy:
                self._warn_of_unknown_proxy(scope)
        await self._app(scope, receive, send)

    def _warn_of_unknown_proxy(self, scope: Scope) -> None:
        """Log that the address that counts says for whom it forwards, but is not believed."""
        client = cast("tuple[str, int] | None", scope.get("client"))
        first = Headers(scope=scope).get("x-forwarded-for", "").partition(",")[0].strip()
        if client is None or not first or counted(first) in (None, counted(client[0])):
            return
        if monotonic() - self._warned >= WARNING_SECONDS:
            self._warned = monotonic()
            log.warning(
                "%s sends X-Forwarded-For but is not a trusted proxy: its visitors share the limits of one address. "
                "If it is your proxy, add its address to FORWARDED_ALLOW_IPS.",
                client[0],
            )


def resolve_address(scope: Scope, *, any_proxy: bool) -> str | None:
    """The address as limits count it: IPv6 by subscriber. None where it is not known for certain."""
    if any_proxy:
        hops = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
        return counted(hops[-1].strip(), private=False)
    client = cast("tuple[str, int] | None", scope.get("client"))
    return counted(client[0]) if client else None


def client_address(scope: Scope) -> str | None:
    """The address that the middleware noted."""
    return cast("str | None", scope.get("state", {}).get("address"))


def counted(host: str, *, private: bool = True) -> str | None:
    """The address in one spelling. A loopback address is a proxy's, and so is a private one unless that is allowed."""
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        found = ip_address(host)
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    if found.is_loopback or found.is_unspecified or (found.is_private and not private):
        return None
    return str(IPv6Network((int(found), HOME), strict=False)) if isinstance(found, IPv6Address) else str(found)
