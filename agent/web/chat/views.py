"""Reads what a page shows of a conversation: its newest turns, and the answer that is being written."""

from collections.abc import Callable, Sequence

from agent.errors import NotFound
from agent.history import Entry, HistoryStore, Record
from agent.web.chat.branches import hidden_after, versions_in
from agent.web.chat.chat_view import ChatView, RunningTurn, with_model_names, with_versions
from agent.web.chat.replies import Replies
from agent.web.chat.running_answer import RunningAnswer
from agent.web.chat.running_answers import RunningAnswers
from agent.web.chat.stored_entries import newest_entries
from agent.web.chat.transcript import to_turns

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
            everything = await self._all_of_branched(record)
            before, live = live, await self._running.get(conversation, owner)
            if live is before:
                break  # otherwise an answer has begun or ended meanwhile, and the entries can lack its end
        versions = versions_in(everything)
        if live is not None:
            before_it = RunningTurn(live, entries, versions, self._name_of).before
            return ChatView(turns=before_it, has_earlier=has_earlier, live=live)
        turns = to_turns(entries, replies=self._replies.get(conversation))
        turns = with_model_names(with_versions(turns, versions), self._name_of)
        return ChatView(turns=turns, has_earlier=has_earlier, hidden=hidden_after(record, everything))

    async def running_turn(self, live: RunningAnswer) -> RunningTurn:
        """Return the turn of an answer that is being written, or that has just ended."""
        record, entries, _ = await newest_entries(self._store, live.owner, live.conversation, WINDOW)
        return RunningTurn(live, entries, versions_in(await self._all_of_branched(record)), self._name_of)

    async def _all_of_branched(self, record: Record) -> Sequence[Entry]:
        """Return all entries of a conversation with branches. One without them has no versions, and needs no read."""
        return await self._store.entries(record) if record.branches else ()
