"""The models of a run in their order: the next one stands in for a model that is not available."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from agent.errors import AgentError, LocalModelError, ProviderError, UnknownModel
from agent.i18n.text import _, joined, listed
from agent.models.catalog import ModelSpec
from agent.providers.connection import ChosenLater, Connection, Endpoint, ForwardingConnection, Reasoning
from agent.providers.retry import is_transient

log = logging.getLogger(__name__)

_ABSENT = ("unknown_model", "access", "quota")
"""The kinds of failures that no retry mends, but that say nothing about another model."""


def is_unavailable(failure: AgentError) -> bool:
    """Return True if the model is not available, so that another one can answer. Each retry has failed before."""
    if isinstance(failure, ProviderError):
        return is_transient(failure) or failure.kind in _ABSENT
    return isinstance(failure, LocalModelError | UnknownModel)


class StandIns(ForwardingConnection):
    """A `Connection` to the first of several models, and after `stand_in` to the next one. It belongs to one run.

    `notes` are sentences for people: why a model did not answer, and which one stands in for it.
    """

    def __init__(self, connections: Sequence[Connection]) -> None:
        self.connections = tuple(connections)
        self.notes: list[str] = []
        self._later = deque(connections)
        self._current = self._later.popleft()
        self._failed: list[str] = []

    @property
    def spec(self) -> ModelSpec:
        return self._current.spec

    @property
    def endpoint(self) -> Endpoint | None:
        """The server that is asked now, if its address is known."""
        return getattr(self._current, "endpoint", None)

    def check(self) -> None:
        """Raise `InputError` if one of the models can never be asked: it would only be found out in need."""
        for one in self.connections:
            one.check()

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        return self._current.effort(reasoning)

    async def ready(self) -> None:
        """Implement `ChosenLater` for the model that is asked now, or for the first later one that can be started."""
        try:
            await _ready(self._current)
        except LocalModelError as failure:
            await self.stand_in(failure)

    async def stand_in(
        self, failure: AgentError, can_take: Callable[[ModelSpec], Awaitable[bool]] | None = None
    ) -> None:
        """Go on to the next model that is there and that `can_take` the question.

        Raises the failure of the model that was asked last, with the names of the others, if no model can stand in.
        """
        while is_unavailable(failure) and self._later:
            candidate = self._later.popleft()
            try:
                await _ready(candidate)
            except LocalModelError as next_failure:
                self._go_on(candidate, failure)
                failure = next_failure
                continue
            if can_take is None or await can_take(candidate.spec):
                self._go_on(candidate, failure)
                return
            self.notes.append(
                _("{model} was not asked, because it cannot take this question.", model=candidate.spec.label)
            )
        if self._failed:
            others = _("Models that did not answer before: {models}.", models=listed(self._failed))
            failure.text = joined([failure.text, others])
            failure.args = (failure.text,)
        raise failure

    def _go_on(self, candidate: Connection, failure: AgentError) -> None:
        absent, self._current = self.spec.label, candidate
        self._failed.append(absent)
        instead = _("{model} was asked instead of {absent}.", model=self.spec.label, absent=absent)
        self.notes.append(joined([failure.text, instead]))
        log.info("%s stands in for %s: %s", self.spec.id, absent, failure)

    async def aclose(self) -> None:
        """Close the clients of all models in the running loop."""
        await asyncio.gather(*(one.aclose() for one in self.connections))

    def _target(self) -> Connection:
        return self._current


async def _ready(connection: Connection) -> None:
    if isinstance(connection, ChosenLater):
        await connection.ready()
