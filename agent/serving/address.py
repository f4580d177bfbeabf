"""The network address that a request comes from, for limits: only where nobody can make it up.

A client can send any `X-Forwarded-For`, to which each proxy appends the address that it saw. uvicorn follows that list
as far as it knows the proxies. Where every sender is taken for a proxy, as on a Space, it would believe the first
entry, which is the client's own; there only the last one counts.
"""

from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import cast

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

ANY = "*"
HOME = 64
"""Bits of an IPv6 address that name a subscriber; the others they choose themselves."""


class Addresses:
    """The middleware that notes the address. `any_proxy`: requests come through a proxy whose address is not known."""

    def __init__(self, app: ASGIApp, *, any_proxy: bool) -> None:
        self._app, self._any_proxy = app, any_proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the address in the request's state."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["address"] = address(scope, any_proxy=self._any_proxy)
        await self._app(scope, receive, send)


def address(scope: Scope, *, any_proxy: bool) -> str | None:
    """The address as limits count it: IPv6 by subscriber. None where it is not known for certain."""
    if any_proxy:
        hops = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
        return _counted(hops[-1].strip(), private=False)
    client = cast("tuple[str, int] | None", scope.get("client"))
    return _counted(client[0], private=True) if client else None


def address_of(scope: Scope) -> str | None:
    """The address that the middleware noted."""
    return cast("str | None", scope.get("state", {}).get("address"))


def _counted(host: str, *, private: bool) -> str | None:
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
