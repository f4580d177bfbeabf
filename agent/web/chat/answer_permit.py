"""Leave to write one answer: a reserved place, and the connection to the model. Whatever begins an answer asks here."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agent.providers import Connection
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.rate_limit import RateLimiter, Reservation
from agent.web.chat.run_setup import Choices
from agent.web.chat.storage_quota import Busy, Reserve, StorageQuota
from agent.web.chat.visitor import Visitor


@dataclass(slots=True)
class AnswerPermit:
    """Leave for one answer. `own`: the connection serves this answer alone and is closed with it.

    `reserve` is called with the bytes of a message before it is stored.
    """

    connection: Connection
    owns_connection: bool
    reservation: Reservation
    offers: ModelMenu
    owner: str
    reserve: Reserve
    handed_over: bool = False

    def hand_over(self) -> None:
        """Hand it over to a run, whose end calls `aclose`."""
        self.reservation.keep()
        self.handed_over = True

    async def aclose(self) -> None:
        """Give everything back."""
        self.reservation.release()
        if self.owns_connection:
            await self.offers.close(self.connection, self.owner)


@asynccontextmanager
async def permit_answer(
    gate: RateLimiter, offers: ModelMenu, quota: StorageQuota, busy: Busy, visitor: Visitor, choices: Choices
) -> AsyncGenerator[AnswerPermit]:
    """Reserve a place before anything else is done. All is given back at the end, unless a run took it.

    Raises `InputError` for choices that are not accepted, `Limited`, and what `Offers.open` raises.
    """
    choices.check()
    with gate.reserve_answer(visitor) as place:
        connection, own = await offers.connect(visitor.owner, choices.model, visitor.login)
        async with quota.reservation(visitor, busy) as reserve:
            grant = AnswerPermit(connection, own, place, offers, visitor.owner, reserve)
            try:
                yield grant
            finally:
                if not grant.handed_over:
                    await grant.aclose()
