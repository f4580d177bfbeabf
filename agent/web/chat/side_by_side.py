"""Several models that answer one message: how their answers are stored, and the turn that shows them side by side.

Each answer is a branch of the conversation. Their messages are marked as one by `Note.compared`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic_ai.messages import ModelMessage

from agent.history import Conversation, Entry, HistoryStore, Note, RunEvents
from agent.web.chat.answers import RunningAnswer
from agent.web.chat.journal import StoreJournal
from agent.web.chat.stored_entries import last_turn
from agent.web.chat.transcript import ConversationTurn, is_prompt, to_turns

MOST_MODELS = 4
"""The most models that answer one message."""

Columns = Mapping[str, Sequence[Sequence[Entry]]]
"""The entries of the turns that are shown side by side, by the id of each of their messages."""


class SharedRecord:
    """A conversation in which several answers are written at once, and the ends of their branches.

    `begins` are the entries that the messages follow.
    """

    def __init__(self, record: Conversation, begins: Sequence[str | None]) -> None:
        self.record, self._begins, self._ends = record, tuple(begins), list(begins)
        left = record.branches if record.head_id is None else (*record.branches, record.head_id)
        self._left = tuple(end for end in left if end not in begins)
        self._failed = set[str]()
        """The ends of the answers that have failed: the chat goes on with another one, if there is one."""
        self.saving = asyncio.Lock()

    async def add(
        self, store: HistoryStore, place: int, before: Conversation, after: Conversation, entry: Entry, events: Any
    ) -> Conversation:
        """Store the next entry of one branch. `before` and `after` are the record as its journal has it."""
        async with self.saving:
            ends = [*self._ends]
            ends[place] = entry.id
            begun = {begin for begin, end in zip(self._begins, ends, strict=True) if begin != end}
            written = [end for end in ends if end is not None and end not in begun]
            failed = self._failed | ({entry.id} if entry.note.ended == "error" else set[str]())
            head, shared = next((end for end in written if end not in failed), written[0]), self.record
            self.record = await store.save(
                replace(
                    shared,
                    head_id=head,
                    branches=tuple(dict.fromkeys(end for end in (*self._left, *written) if end != head)),
                    pending=after.pending if head == entry.id else shared.pending,
                    title=shared.title or after.title,
                    expires_at=after.expires_at,
                    input_tokens=shared.input_tokens + after.input_tokens - before.input_tokens,
                    output_tokens=shared.output_tokens + after.output_tokens - before.output_tokens,
                    cost=shared.cost + after.cost - before.cost,
                ),
                [entry],
                events,
            )
            self._ends, self._failed = ends, failed
            return replace(after, title=self.record.title, revision=self.record.revision)


@dataclass(frozen=True)
class Branch:
    """The place of one answer in a shared record. `ids` are those of the messages to all models."""

    shared: SharedRecord
    place: int
    ids: tuple[str, ...]

    @property
    def id(self) -> str:
        """The id of the message to this model."""
        return self.ids[self.place]


class BranchJournal(StoreJournal):
    """The journal of one of several answers to a message."""

    def __init__(self, branch: Branch, *given: Any) -> None:
        super().__init__(*given)
        self._branch = branch

    async def write(self, message: ModelMessage, note: Note) -> None:
        """Implement `StoreJournal.write`. The first message gets the mark."""
        await super().write(message, note if self.first_write.done() else replace(note, compared=self._branch.ids))

    async def _add(self, entry: Entry, events: RunEvents | None) -> Conversation:
        before, after = self.record, self._advance(entry)
        return await self._branch.shared.add(self._store, self._branch.place, before, after, entry, events)


async def begins_of(
    store: HistoryStore, record: Conversation, models: Sequence[str], *, each_from_own: bool
) -> Sequence[str | None]:
    """Return the entry that the message to each of these models follows.

    That is the end of the shown branch, or with `each_from_own` the model's own answer, if the last turn has one.
    """
    turn = await last_turn(store, record) if each_from_own and record.head_id is not None else ()
    columns = await columns_of(store, record, turn)
    own = {answer[-1].note.model: answer[-1].id for answers in columns.values() for answer in answers}
    return [own.get(model, record.head_id) for model in models]


async def columns_of(store: HistoryStore, record: Conversation, shown: Sequence[Entry]) -> Columns:
    """Return the answers of all models to the messages among these entries, as far as several are stored."""
    groups = {entry.id: entry.note.compared for entry in shown if entry.note.compared}
    if not groups:
        return {}
    found = await store.find(record, ids={id_ for ids in groups.values() for id_ in ids})
    turns = {entry.id: [entry] for entry in found}
    ends = {id_: id_ for id_ in turns}
    while ends:  # one step of all answers at a time
        nexts = defaultdict[str | None, list[Entry]](list)
        for entry in await store.find(record, after={*ends.values()}):
            if not is_prompt(entry):
                nexts[entry.parent_id].append(entry)
        ends = {id_: nexts[end][-1].id for id_, end in ends.items() if end in nexts}
        for id_ in ends:
            turns[id_].append(nexts[turns[id_][-1].id][-1])
    columns = {id_: [turns[one] for one in ids if one in turns] for id_, ids in groups.items()}
    return {id_: answers for id_, answers in columns.items() if len(answers) > 1}


def with_columns(
    turns: Sequence[ConversationTurn], columns: Columns, name_of: Callable[[str], str]
) -> list[ConversationTurn]:
    """Return the turns with the answers that are shown side by side."""

    def stored(turn: ConversationTurn) -> ConversationTurn:
        answers = columns.get(turn.user.id, ()) if turn.user else ()
        others = [to_turns(answer)[-1] for answer in answers]
        named = [replace(one, model_name=name_of(one.model) if one.model else "") for one in others]
        return replace(turn, columns=tuple(turn if _is_same(one, turn) else one for one in named))

    return [stored(turn) if turn.user and turn.user.id in columns else turn for turn in turns]


def _is_same(one: ConversationTurn, other: ConversationTurn) -> bool:
    return one.user is not None and other.user is not None and one.user.id == other.user.id


class GrowingTurn(Protocol):
    """The turn of a running answer. See `agent.web.chat.views.RunningTurn`."""

    live: RunningAnswer

    @property
    def ended(self) -> int:
        """How many answers have ended since the turn was made."""
        ...

    def turn(self, watched_since: float) -> ConversationTurn:
        """Return the turn for a page that watches since this time on the monotonic clock."""
        ...


class ColumnsTurn:
    """A turn that several models answer. `running` has what is being written of it, by the ids of the messages.

    `shown` is the turn of the branch that is shown, with its columns. `before` are the turns before it.
    """

    def __init__(
        self,
        live: RunningAnswer,
        before: Sequence[ConversationTurn],
        shown: ConversationTurn,
        running: Mapping[str, GrowingTurn],
    ) -> None:
        self.live, self.before, self._shown, self._running = live, before, shown, running

    @property
    def ended(self) -> int:
        """Implement `GrowingTurn.ended`."""
        return sum(one.ended for one in self._running.values())

    def turn(self, watched_since: float) -> ConversationTurn:
        """Implement `GrowingTurn.turn`."""
        columns = [self._column(one, watched_since) for one in self._shown.columns]
        shown = next(one for one in columns if _is_same(one, self._shown))
        note = None if any(one.note is None for one in columns) else shown.note
        return replace(shown, note=note, columns=tuple(columns), versions=self._shown.versions)

    def _column(self, stored: ConversationTurn, watched_since: float) -> ConversationTurn:
        running = self._running.get(stored.user.id) if stored.user else None
        return stored if running is None else replace(running.turn(watched_since), wait=running.live.waiting)
