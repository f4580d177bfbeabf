"""The read-only links of a store in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from agent.errors import Conflict, NotFound
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, too_many


@dataclass(frozen=True, slots=True)
class MemoryLinks:
    """The `LinkStore` of a store in memory. `_find` raises `NotFound` if an owner does not have a conversation."""

    _links: dict[str, Link]
    _find: Callable[[str, str], object]
    _clock: Callable[[], datetime]

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""
        self._find(link.conversation_id, link.owner)
        dump_link(link)
        if link.digest in self._links:
            raise Conflict(USED_DIGEST)
        for expired in [one for one in self._of(link.conversation_id) if not one.is_live(self._clock())]:
            del self._links[expired.digest]
        if most is not None and len(self._of(link.conversation_id)) >= most:
            raise too_many(most)
        self._links[link.digest] = link

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        link = self._links.get(digest)
        if link is None or not link.is_live(self._clock()):
            raise NotFound(NO_LINK)
        try:
            self._find(link.conversation_id, link.owner)
        except NotFound as error:
            raise NotFound(NO_LINK) from error
        return link

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        self._find(conversation_id, owner)
        return live_links(self._of(conversation_id), self._clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`."""
        if (await self.get(digest)).owner != owner:
            raise NotFound(NO_LINK)
        del self._links[digest]

    def _of(self, conversation_id: str) -> list[Link]:
        return [link for link in self._links.values() if link.conversation_id == conversation_id]
