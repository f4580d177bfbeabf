"""The read-only links in a JSON history, in the states of their conversations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from agent.errors import Conflict, NotFound
from agent.history.json_conversation import State
from agent.history.json_folder import JsonFolder, find_live
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, too_many


@dataclass(frozen=True, slots=True)
class JsonLinks:
    """The `LinkStore` of a JSON history."""

    _folder: JsonFolder

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""
        await self._folder.write(partial(_put, self._folder, link, most))

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        return (await self._folder.read(partial(_find, self._folder, digest)))[1]

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        state, _ = await self._folder.read(partial(find_live, self._folder, owner, conversation_id))
        return live_links(state.links.values(), self._folder.clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`."""
        await self._folder.write(partial(_remove, self._folder, digest, owner))


def _put(folder: JsonFolder, link: Link, most: int | None) -> None:
    state, _ = find_live(folder, link.owner, link.conversation_id)
    dump_link(link)
    if folder.find_link(link.digest) is not None:
        raise Conflict(USED_DIGEST)
    live = {one.digest: one for one in live_links(state.links.values(), folder.clock())}
    if most is not None and len(live) >= most:
        raise too_many(most)
    folder.add_link(link.digest, state)
    _rewrite(folder, state, {**live, link.digest: link})


def _find(folder: JsonFolder, digest: str) -> tuple[State, Link]:
    state, at = folder.find_link(digest), folder.clock()
    if state is None or not state.is_live(at) or not state.links[digest].is_live(at):
        raise NotFound(NO_LINK)
    return state, state.links[digest]


def _remove(folder: JsonFolder, digest: str, owner: str) -> None:
    state, _ = _find(folder, digest)
    if state.owner != owner:
        raise NotFound(NO_LINK)
    _rewrite(folder, state, {key: link for key, link in state.links.items() if key != digest})


def _rewrite(folder: JsonFolder, state: State, links: Mapping[str, Link]) -> None:
    """Replace the links of a conversation, and leave its record as it is."""
    found = folder.find(state.owner, state.id)
    if found is None:
        raise NotFound(NO_LINK)
    folder.write_record(replace(found[0], links=links), found[1], is_new=False)
    folder.remove_links(found[0].links.keys() - links.keys())
