"""The messages of a run. A message counts only once the journal has taken it."""

from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage

from agent.context import Context
from agent.history import Note
from agent.messages.repair import repair
from agent.result import Journal
from agent.runtime.shield import run_to_completion


class MessageLog:
    """The history a run starts from and the messages it adds. Owns the calls of the journal.

    `begun` is False until the run has changed something: until then a refusal leaves no trace.
    """

    def __init__(self, session_id: str, history: Sequence[ModelMessage], journal: Journal | None) -> None:
        self.messages = list(history)
        self.begun = False
        self.session_id = session_id
        self._journal, self._start = journal, len(self.messages)

    @property
    def added(self) -> Sequence[ModelMessage]:
        """The messages of this run."""
        return self.messages[self._start :]

    @property
    def context(self) -> Context:
        """The conversation so far, valid to go on from at any moment."""
        return self.with_last()

    def with_last(self, *messages: ModelMessage) -> Context:
        """The conversation as it is once these messages are written."""
        return Context(session_id=self.session_id, messages=tuple(repair([*self.messages, *messages])))

    def raw_context(self) -> Context:
        """The conversation without any repair, which cannot fail."""
        return Context(session_id=self.session_id, messages=tuple(self.messages))

    async def append(self, message: ModelMessage, note: Note) -> None:
        """Write the message, then add it. A write that has begun is finished even if the run is cancelled."""

        async def write() -> None:
            self.begun = True
            if self._journal is not None:
                await self._journal.write(message, note)
            self.messages.append(message)

        await run_to_completion(write())
