"""Temporary chats: their beginning, their end, and their limits.

Nothing of them is stored. A chat is erased when its page has not asked for it for a while, or at the end of the
process. An answer that is being written is cancelled then.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context
from time import monotonic

from agent.errors import Limited
from agent.history import Conversation
from agent.i18n.text import _
from agent.web.chat.answers import STOP_SECONDS, LiveRun, LiveRuns
from agent.web.chat.storage_quota import Reserve
from agent.web.chat.temporary_stores import FULL, TemporaryChat, TemporaryMemory
from agent.web.chat.visitor import Visitor
from agent.web.client_address import has_full_share

CHATS_EACH = 2
"""The most temporary chats of one visitor at once."""
CHATS = 500
CHATS_PER_ADDRESS = 8
"""Temporary chats that one network address can always have, unless there are `CHATS`."""
ADDRESS_SHARE = 0.02
"""The fraction of the memory that the chats of one visitor, or of one address, can use in any case."""
GONE_SECONDS = 90.0
"""Seconds after which a chat is erased. Its page asks every 15 s, or once a minute if the browser does not show it."""
SWEEP_SECONDS = 5.0
"""Seconds between two looks for chats whose page has gone."""


class TemporaryChats:
    """Begins and erases the chats in `memory`. Each call names the owner.

    `forget` is called with the id of an erased chat. `clock` returns seconds.
    """

    def __init__(
        self,
        memory: TemporaryMemory,
        live_runs: LiveRuns,
        forget: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._memory, self._live_runs, self.forget, self._clock = memory, live_runs, forget, clock
        self._reserved = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ending = set[asyncio.Task[None]]()

    async def begin(self, visitor: Visitor) -> Conversation:
        """Return a new chat without messages. Raises `Limited`."""
        mine = self._memory.of(visitor.owner)
        if len(mine) >= CHATS_EACH:
            left = next((chat for chat in mine if chat.is_left), None)
            if left is None:
                raise Limited(
                    _("You have {most} temporary chats open. Close one of them, or wait a minute.", most=CHATS_EACH)
                )
            self._erase(left)
        self._check_number(visitor)
        chat = self._memory.add(visitor.owner, visitor.address, self._clock())
        if self._timer is None:
            self._sweep_later()
        return await chat.store.save(Conversation(id=chat.id, owner=chat.owner))

    @contextmanager
    def beginning(self, owner: str, conversation_id: str) -> Generator[None]:
        """Keep a new chat while its first message is prepared, however long that takes. Leave it if that fails."""
        chat = self._memory.get(conversation_id, owner)
        chat.is_beginning = True
        try:
            yield
        except BaseException:
            chat.is_left = True  # an empty chat, in the place of another one
            raise
        finally:
            chat.is_beginning, chat.asked_at = False, self._clock()

    def ids(self, owner: str) -> list[str]:
        """Return the ids of this owner's chats."""
        return [chat.id for chat in self._memory.of(owner)]

    def keep(self, owner: str, conversation_id: str) -> None:
        """Note that a page shows this chat. Raises `NotFound`."""
        chat = self._memory.get(conversation_id, owner)
        chat.asked_at, chat.is_left = self._clock(), False

    def leave(self, owner: str, conversation_id: str) -> None:
        """Note that no page shows this chat. It stays for a while unless its owner begins others. Raises `NotFound`."""
        self._memory.get(conversation_id, owner).is_left = True

    def erase_all(self, owner: str) -> None:
        """Erase all chats of this owner."""
        for chat in self._memory.of(owner):
            self._erase(chat)

    def sweep(self) -> None:
        """Erase the chats whose pages have gone."""
        for chat in [*self._memory.chats.values()]:
            if self._clock() - chat.asked_at >= GONE_SECONDS and not chat.is_beginning:
                self._erase(chat)

    @asynccontextmanager
    async def reservation(self, visitor: Visitor) -> AsyncGenerator[Reserve]:
        """Reserve memory for a message, as `StorageQuota.reservation` reserves room in the store."""
        reserved = 0

        async def reserve(size: int) -> None:
            nonlocal reserved
            self._check_room(visitor, size)
            self._reserved += size
            reserved += size

        try:
            yield reserve
        finally:
            self._reserved -= reserved

    async def aclose(self) -> None:
        """Erase all chats, and wait for the end of their answers."""
        if self._timer is not None:
            self._timer.cancel()
        for chat in [*self._memory.chats.values()]:
            self._erase(chat)
        if self._ending:
            await asyncio.wait(self._ending)

    # Helpers

    def _erase(self, chat: TemporaryChat) -> None:
        """Erase a chat and cancel its answer, which writes its end to what nobody can read any more."""
        del self._memory.chats[chat.id]
        self.forget(chat.id)
        if running := self._live_runs.of(chat.id):
            for live in running:
                live.run.cancel("client_disconnect")
            self._memory.ending[chat.id] = chat
            task = asyncio.create_task(self._wait_for_ends(chat.id, running), context=Context())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _wait_for_ends(self, conversation_id: str, running: Sequence[LiveRun]) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await asyncio.gather(*(live.wait_for_end() for live in running))
        finally:
            del self._memory.ending[conversation_id]

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(SWEEP_SECONDS, self._sweep_again, context=Context())

    def _sweep_again(self) -> None:
        self._timer = None
        self.sweep()
        if self._memory.chats:
            self._sweep_later()

    def _check_number(self, visitor: Visitor) -> None:
        free = CHATS - len(self._memory.chats)
        number = len(self._at_address(visitor))
        if free <= 0 or (visitor.address and has_full_share(number, free=free, always=CHATS_PER_ADDRESS)):
            raise Limited(FULL)

    def _check_room(self, visitor: Visitor, size: int) -> None:
        room = self._memory.room() - self._reserved
        chats = {chat.id: chat for chat in (*self._memory.of(visitor.owner), *self._at_address(visitor))}
        used = sum(chat.size for chat in chats.values()) + size
        always = int(ADDRESS_SHARE * self._memory.max_bytes)
        if size > room or has_full_share(used, free=room - size, always=always):
            raise Limited(FULL)

    def _at_address(self, visitor: Visitor) -> Sequence[TemporaryChat]:
        return [chat for chat in self._memory.chats.values() if visitor.address and chat.address == visitor.address]
