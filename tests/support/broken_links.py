"""Stores with deliberately broken links, and the laws that find their faults."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from agent.errors import NotFound
from agent.history import HistoryStore, Link
from agent.history.conformance import Subject
from agent.history.links import too_many
from agent.history.memory import MemoryStore
from agent.history.memory_links import MemoryLinks
from tests.support.history_stores import MORE


class ForgetsChoices(MemoryLinks):
    async def put(self, link: Link, *, most: int | None = None) -> None:
        await super().put(replace(link, system_prompt=None), most=most)


class AcceptsAnyText(MemoryLinks):
    async def put(self, link: Link, *, most: int | None = None) -> None:
        await super().put(replace(link, system_prompt=None), most=most)
        self._links[link.digest] = link


class FindsSimilar(MemoryLinks):
    async def get(self, digest: str) -> Link:
        return await super().get(digest.strip().lower())


class ForgetsOwners(MemoryLinks):
    async def remove(self, digest: str, *, owner: str) -> None:
        await super().remove(digest, owner=(await self.get(digest)).owner)


class ListsAllLinks(MemoryLinks):
    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        return [*self._links.values()]


class Overwrites(MemoryLinks):
    async def put(self, link: Link, *, most: int | None = None) -> None:
        self._links.pop(link.digest, None)
        await super().put(link, most=most)


class RemovesAll(MemoryLinks):
    async def remove(self, digest: str, *, owner: str) -> None:
        await super().remove(digest, owner=owner)
        self._links.clear()


class HidesRemoved(MemoryLinks):
    async def remove(self, digest: str, *, owner: str) -> None:
        link = await self.get(digest)
        if link.owner != owner:
            raise NotFound("There is no such link.")
        self._links[digest] = replace(link, expires_at=datetime.fromtimestamp(0, UTC))


class NeverExpires(MemoryLinks):
    async def get(self, digest: str) -> Link:
        if digest not in self._links:
            raise NotFound("There is no such link.")
        return self._links[digest]


class KeepsLinksAfterDelete(MemoryLinks):
    """A copy of the links survives the deletion of their conversation."""

    async def put(self, link: Link, *, most: int | None = None) -> None:
        await super().put(link, most=most)
        vars(self._clock)[link.digest] = link

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        self._find(conversation_id, owner)
        return [link for link in vars(self._clock).values() if isinstance(link, Link)]


class CountsBeforehand(MemoryLinks):
    """Others can store links between the count and the storage of a new one."""

    async def put(self, link: Link, *, most: int | None = None) -> None:
        if most is not None and len(await self.of(link.conversation_id, owner=link.owner)) >= most:
            raise too_many(most)
        await asyncio.sleep(0)
        await super().put(link)


class CountsExpired(MemoryLinks):
    async def put(self, link: Link, *, most: int | None = None) -> None:
        if most is not None and len(self._of(link.conversation_id)) >= most:
            raise too_many(most)
        await super().put(link)


FAULTS_OF_LINKS: dict[type[MemoryLinks], tuple[str, ...]] = {
    ForgetsChoices: ("link_comes_back_by_its_digest",),
    AcceptsAnyText: ("link_that_would_not_load_is_refused",),
    FindsSimilar: ("missing_link_is_not_found",),
    ForgetsOwners: ("only_owner_has_links",),
    ListsAllLinks: ("only_owner_has_links",),
    Overwrites: ("digest_is_never_stored_twice",),
    RemovesAll: ("removed_link_is_missing",),
    HidesRemoved: ("removed_link_is_nowhere",),
    NeverExpires: ("expired_link_is_missing", "expired_conversation_has_no_links"),
    CountsBeforehand: ("links_of_a_chat_are_limited",),
    CountsExpired: ("links_of_a_chat_are_limited",),
    KeepsLinksAfterDelete: ("links_go_with_their_conversation",),
}


def _subject(kind: type[MemoryLinks]) -> Subject:
    async def open_(_: Path, clock: Callable[[], datetime]) -> HistoryStore:
        store = MemoryStore(clock)
        store.links = kind(store._data.links, store._data.find_owned, clock)
        return store

    return Subject(open=open_, **MORE["memory"])


LINKS = {kind.__name__: _subject(kind) for kind in FAULTS_OF_LINKS}
