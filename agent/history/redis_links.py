"""The read-only links in a Redis history."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.errors import Conflict, NotFound
from agent.history import redis_link_scripts as scripts
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, load_link, too_many
from agent.history.records import NO_CONVERSATION
from agent.history.redis_server import RedisServer


@dataclass(frozen=True, slots=True)
class RedisLinks:
    """The `LinkStore` of a Redis history."""

    _server: RedisServer

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""
        expires = link.expires_at.timestamp() if link.expires_at else ""
        values = (link.digest, link.conversation_id, link.owner, expires, dump_link(link))
        match await self._server.run(scripts.PUT_LINK, *values, "" if most is None else most, again=False):
            case b"missing":
                raise NotFound(NO_CONVERSATION)
            case b"used":
                raise Conflict(USED_DIGEST)
            case b"full" if most is not None:
                raise too_many(most)
            case _:
                pass

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        text = await self._server.run(scripts.GET_LINK, digest)
        if not text:
            raise NotFound(NO_LINK)
        return load_link(text.decode())

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        found, *texts = await self._server.run(scripts.LINKS_OF, conversation_id, owner)
        if not found:
            raise NotFound(NO_CONVERSATION)
        return live_links((load_link(text.decode()) for text in texts), self._server.clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`."""
        if not await self._server.run(scripts.REMOVE_LINK, digest, owner, again=False):
            raise NotFound(NO_LINK)
