"""Reads what a page shows of a conversation: its newest turns, and the answer that is being written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic

from agent.errors import NotFound
from agent.history import NO_CONVERSATION, NO_ENTRY, Entry, HistoryStore, Record
from agent.system.threads import TURNS
from agent.web.chat.branches import hidden_after, versions_in
from agent.web.chat.chat_view import ChatView, RunningTurn, with_model_names, with_versions
from agent.web.chat.questions import QuestionId
from agent.web.chat.replies import Replies
from agent.web.chat.running_answer import RunningAnswer
from agent.web.chat.running_answers import RunningAnswers
from agent.web.chat.stored_entries import entries_of_turn, newest_entries
from agent.web.chat.transcript import Turn, is_prompt, to_turns

WINDOW = 30
"""Bubbles shown at first. The cost of an update depends on their number alone."""


class ChatViews:
    """Reads views from the store. `running` are the answers that are being written, `replies` those of visitors.

    `name_of` returns the name of the model with an id.
    """

    def __init__(
        self, store: HistoryStore, running: RunningAnswers, replies: Replies, name_of: Callable[[str], str]
    ) -> None:
        self._store, self._running, self._replies, self._name_of = store, running, replies, name_of

    async def view(self, owner: str, conversation: str | None, window: int = WINDOW) -> ChatView:
        """Return the newest turns of a stored conversation. It is missing if this owner does not have it."""
        live = await self._running.get(conversation, owner)
        while True:
            try:
                record, entries, has_earlier = await newest_entries(self._store, owner, conversation, window)
            except NotFound:
                return ChatView(is_missing=True)
            around = await self._around(record, entries)
            before, live = live, await self._running.get(conversation, owner)
            if live is before:
                break  # otherwise an answer has begun or ended meanwhile, and the entries can lack its end
        if live is not None:
            running = await TURNS.run(_running_turn, live, entries, around, self._name_of)
            return ChatView(turns=running.before, has_earlier=has_earlier, live=live)
        hidden = await hidden_after(self._store, record, around)
        turns = await self._turns(entries, around, self._replies.get(conversation))
        return ChatView(turns=turns, has_earlier=has_earlier, hidden=hidden)

    async def with_turn(self, owner: str, conversation: str, before: str = "", window: int = WINDOW) -> ChatView:
        """Return a view with a complete turn, if there is one: of the newest turns, or of those before this message.

        Raises `NotFound`.
        """
        while True:
            read = (
                self._earlier(owner, conversation, before, window) if before else self.view(owner, conversation, window)
            )
            view = await read
            if view.is_missing:
                raise NotFound(NO_CONVERSATION)
            if not view.has_earlier or any(turn.user for turn in view.turns):
                return view
            window *= 4  # a turn can have hundreds of messages

    async def _earlier(self, owner: str, conversation: str, before: str, window: int) -> ChatView:
        record = await self._store.get(conversation, owner=owner)
        if not any(map(is_prompt, await self._store.find(record, ids=[before]))):
            raise NotFound(NO_ENTRY)
        most = window * 2 + 1
        entries = await self._store.history(replace(record, head_id=before), limit=most)
        turns = await self._turns(entries, await self._around(record, entries))
        return ChatView(turns=turns[:-1], has_earlier=len(entries) == most)

    async def turn(self, owner: str, conversation: str, message: str) -> Turn:
        """Return the turn of the shown branch that begins with this message. Raises `NotFound`."""
        if (live := await self._running.get(conversation, owner)) is not None:
            turn = (await self.running_turn(live)).turn(monotonic())
            if turn.user is not None and turn.user.id == message:
                return turn
        entries = await entries_of_turn(self._store, await self._store.get(conversation, owner=owner), message)
        return (await TURNS.run(to_turns, entries))[0]

    async def running_turn(self, live: RunningAnswer) -> RunningTurn:
        """Return the turn of an answer that is being written, or that has just ended."""
        while True:
            is_stored = live.is_end_stored
            record, entries, _ = await newest_entries(self._store, live.owner, live.conversation, WINDOW)
            if live.is_end_stored == is_stored:
                break  # otherwise it is not known whether the entries have the end
        around = await self._around(record, entries)
        return await TURNS.run(_running_turn, live, entries, around, self._name_of, is_stored=is_stored)

    async def _turns(
        self, entries: Sequence[Entry], around: Sequence[Entry], replies: Mapping[QuestionId, str] | None = None
    ) -> list[Turn]:
        """Return the turns of these entries, with their versions and the names of the models."""

        def turns() -> list[Turn]:
            versions = versions_in(around)
            return with_model_names(with_versions(to_turns(entries, replies=replies), versions), self._name_of)

        return await TURNS.run(turns)

    async def _around(self, record: Record, shown: Sequence[Entry]) -> Sequence[Entry]:
        """Return all versions of the shown questions, and what follows the last entry.

        A conversation without branches has no versions, and needs no read.
        """
        if not record.branches:
            return ()
        places = {entry.parent_id for entry in shown if is_prompt(entry)}
        return await self._store.find(record, after={*places, record.head_id})


def _running_turn(
    live: RunningAnswer,
    entries: Sequence[Entry],
    around: Sequence[Entry],
    name_of: Callable[[str], str],
    *,
    is_stored: bool = False,
) -> RunningTurn:
    return RunningTurn(live, entries, versions_in(around), name_of, is_stored=is_stored)
