"""Finds the network address that a request comes from, for rate limits, unless the address could be forged.

A client can send any `X-Forwarded-For` header, and each proxy appends the address that it saw. Uvicorn follows that
list back through the proxies that it knows. On a Space every sender counts as a proxy, so uvicorn would believe the
first entry, which the client wrote itself. There, only the last entry counts.
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
"""Seconds between two log lines about an unknown proxy, because anybody can cause these lines."""
SUBSCRIBER_BITS = 64
"""Bits of an IPv6 address that identify a subscriber. Subscribers choose the other bits themselves."""


class ClientAddressMiddleware:
    """Middleware that notes the address. `any_proxy` is True if requests come through a proxy of unknown address."""

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
        """Log a warning if the client seems to be a proxy that is not trusted.

        Uvicorn takes the client from the header if a trusted proxy sent it. Entries before the client can be forged. So
        a client in the header is a visitor, unless its address is private: then it can be a second proxy.
        """
        client = cast("tuple[str, int] | None", scope.get("client"))
        hops = _forwarded(scope)
        if client is None or normalize_address(hops[0]) in (None, normalize_address(client[0])):
            return
        if normalize_address(client[0], private=False) and normalize_address(client[0]) in map(normalize_address, hops):
            return
        if monotonic() - self._warned >= WARNING_SECONDS:
            self._warned = monotonic()
            log.warning(
                "%s sends X-Forwarded-For but is not a trusted proxy: its visitors share the limits of one address. "
                "If it is your proxy, add its address to FORWARDED_ALLOW_IPS.",
                client[0],
            )


def resolve_address(scope: Scope, *, any_proxy: bool) -> str | None:
    """Return the address that limits count. IPv6 is counted per subscriber. None if the address is not certain."""
    if any_proxy:
        return normalize_address(_forwarded(scope)[-1], private=False)
    client = cast("tuple[str, int] | None", scope.get("client"))
    return normalize_address(client[0]) if client else None


def _forwarded(scope: Scope) -> list[str]:
    """Return the entries of `X-Forwarded-For`, at least one."""
    return [hop.strip() for hop in ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")]


def client_address(scope: Scope) -> str | None:
    """Return the address that the middleware noted."""
    return cast("str | None", scope.get("state", {}).get("address"))


def has_full_share(used: int, *, free: int, always: int) -> bool:
    """Return True if an address that uses this number of slots gets no other one.

    An address can use as many slots as are `free`, and at least `always`. Alone it gets half of all slots, beside one
    other full address a third, and so on, so the next address always finds free ones.
    """
    return used >= max(free, always)


def normalize_address(host: str, *, private: bool = True) -> str | None:
    """Return the address in one spelling, or None if it cannot belong to a visitor.

    A loopback address belongs to a proxy. So does a private address, unless `private` is True.
    """
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
    return (
        str(IPv6Network((int(found), SUBSCRIBER_BITS), strict=False)) if isinstance(found, IPv6Address) else str(found)
    )
