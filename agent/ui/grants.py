"""Leave to write one answer: a reserved place, and the connection to the model. Whatever begins an answer asks here."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agent.providers import Connection
from agent.ui.gate import Gate, Place
from agent.ui.offers import Offers
from agent.ui.start import Choices
from agent.ui.storage_quota import Busy, Reserve, StorageQuota
from agent.ui.visitor import Visitor


@dataclass(slots=True)
class Grant:
    """Leave for one answer. `own`: the connection serves this answer alone and is closed with it.

    `reserve` is called with the bytes of a message before it is stored.
    """

    connection: Connection
    own: bool
    place: Place
    offers: Offers
    owner: str
    reserve: Reserve
    taken: bool = False

    def take(self) -> None:
        """Hand it over to a run, whose end calls `aclose`."""
        self.place.keep()
        self.taken = True

    async def aclose(self) -> None:
        """Give everything back."""
        self.place.release()
        if self.own:
            await self.offers.close(self.connection, self.owner)


@asynccontextmanager
async def granted(
    gate: Gate, offers: Offers, quota: StorageQuota, busy: Busy, visitor: Visitor, choices: Choices
) -> AsyncGenerator[Grant]:
    """Reserve a place before anything else is done. All is given back at the end, unless a run took it.

    Raises `InputError` for choices that are not accepted, `Limited`, and what `Offers.open` raises.
    """
    choices.check()
    with gate.enter(visitor) as place:
        connection, own = await offers.open(visitor.owner, choices.model, visitor.login)
        async with quota.reservation(visitor, busy) as reserve:
            grant = Grant(connection, own, place, offers, visitor.owner, reserve)
            try:
                yield grant
            finally:
                if not grant.taken:
                    await grant.aclose()
