"""The permit to write one answer: a reservation and a model connection. All code that begins an answer needs one."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from agent.local.zero_gpu import visitor_token
from agent.providers import Connection
from agent.web.chat.choices import Choices
from agent.web.chat.expiry import IsBusy
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.rate_limit import RateLimiter, Reservation
from agent.web.chat.storage_quota import Reserve
from agent.web.chat.visitor import Visitor


class Quota(Protocol):
    """Room for messages: in the store, or in memory for those of temporary chats."""

    def reservation(self, visitor: Visitor, is_busy: IsBusy, /) -> AbstractAsyncContextManager[Reserve]:
        """Allow a message to be stored in the block."""
        ...


@dataclass(slots=True)
class AnswerPermit:
    """The permit for one answer. With `owns_connection`, the connection serves only this answer and is closed with it.

    Call `reserve` with the size of a message in bytes before the message is stored.
    """

    connection: Connection
    owns_connection: bool
    reservation: Reservation
    models: ModelMenu
    visitor: Visitor
    reserve: Reserve
    handed_over: bool = False

    def hand_over(self) -> None:
        """Hand the permit over to a run. The end of the run calls `aclose`."""
        self.reservation.hand_over()
        self.handed_over = True

    async def aclose(self) -> None:
        """Release the reservation and the connection."""
        self.reservation.release()
        if self.owns_connection:
            await self.models.close(self.connection, self.visitor.owner)


@asynccontextmanager
async def permit_answer(
    rate_limiter: RateLimiter,
    models: ModelMenu,
    quota: Quota,
    is_busy: IsBusy,
    visitor: Visitor,
    choices: Choices,
) -> AsyncGenerator[AnswerPermit]:
    """Reserve a place before anything else happens. Everything is released at the end, unless a run took the permit.

    Raises `InputError` for invalid choices, `Limited`, and the errors of `ModelMenu.connect`.
    """
    choices.check()
    visitor_token.set(visitor.gpu_token)  # the run that this task starts inherits it
    with rate_limiter.reserve_answer(visitor) as reservation:
        connection, owns_connection = await models.connect(visitor.owner, choices.model, visitor.login)
        async with quota.reservation(visitor, is_busy) as reserve:
            permit = AnswerPermit(connection, owns_connection, reservation, models, visitor, reserve)
            try:
                yield permit
            finally:
                if not permit.handed_over:
                    await permit.aclose()
