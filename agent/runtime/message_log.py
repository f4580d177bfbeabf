"""The messages of a run. A message counts only once the journal has taken it."""

from collections.abc import Callable, Sequence

from pydantic_ai.messages import ModelMessage

from agent.context import Context
from agent.history import Note
from agent.messages.plain_text import off_loop
from agent.messages.repair import repair
from agent.result import Journal
from agent.system.shield import run_to_completion


class MessageLog:
    """The history that a run starts from and the messages that it adds. Only this class calls the journal.

    `begun` is False until the run has changed something: until then a refusal leaves no trace.
    """

    def __init__(self, session_id: str, history: Sequence[ModelMessage], journal: Journal | None) -> None:
        self.messages = list(history)
        self.begun = False
        self.session_id = session_id
        self._journal, self._start = journal, len(self.messages)

    async def repair(self) -> None:
        """Repair the history, before anything is added."""
        self.messages = await off_loop(self.messages, repair, self.messages)
        self._start = len(self.messages)

    @property
    def added(self) -> Sequence[ModelMessage]:
        """The messages that this run has added."""
        return self.messages[self._start :]

    @property
    def context(self) -> Context:
        """The conversation so far. A new run can continue from it at any moment."""
        return self.with_last()

    def lazy_context(self) -> Callable[[], Context]:
        """Return a function that makes the conversation as it is now, also if it has grown meanwhile."""
        length = len(self.messages)
        return lambda: Context(session_id=self.session_id, messages=tuple(repair(self.messages[:length])))

    def with_last(self, *messages: ModelMessage) -> Context:
        """Return the conversation as it will be after these messages are written."""
        return Context(session_id=self.session_id, messages=tuple(repair([*self.messages, *messages])))

    def raw_context(self) -> Context:
        """Return the conversation without any repair. This cannot fail."""
        return Context(session_id=self.session_id, messages=tuple(self.messages))

    async def append(self, message: ModelMessage, note: Note) -> None:
        """Write the message to the journal, then add it. Cancelling the run does not interrupt a write in progress."""

        async def write() -> None:
            self.begun = True
            if self._journal is not None:
                await self._journal.write(message, note)
            self.messages.append(message)

        await run_to_completion(write())
