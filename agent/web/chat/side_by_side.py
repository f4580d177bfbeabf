"""Several models that answer one message: how their answers are stored, and the turn that shows them side by side.

Each answer is a branch of the conversation. Their messages are marked as one by `Note.compared`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from csv import writer
from dataclasses import dataclass, replace
from io import StringIO
from itertools import combinations, islice, takewhile
from typing import Any, Protocol

from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from agent.files.references import reference_of, with_references
from agent.history import ALL_BAD, MOST_MODELS, TIE, Conversation, Entry, HistoryStore, Note, RunEvents, Vote
from agent.messages.repair import count_bytes
from agent.web.chat.answers import RunningAnswer
from agent.web.chat.journal import StoreJournal
from agent.web.chat.stored_entries import VIEW_BYTES, last_turn
from agent.web.chat.transcript import ConversationTurn, is_prompt, to_turns

PAGE, MOST_ENTRIES = 200, 1000
"""The messages of an answer that are read at once, and the most that are shown of one."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The characters that begin a formula in a table."""
MOST_FOLLOWING = 10_000
"""The messages that can follow those of the shown columns. The columns after them are not shown, and neither are those
after `VIEW_BYTES` of text."""

Columns = Mapping[str, Sequence[Sequence[Entry]]]
"""The entries of the turns that are shown side by side, by the id of each of their messages."""


class SharedConversation:
    """A conversation in which several answers are written at once, and the ends of their branches.

    `begins` are the entries that the messages follow.
    """

    def __init__(self, conversation: Conversation, begins: Sequence[str | None]) -> None:
        self.conversation, self._begins, self._ends = conversation, tuple(begins), list(begins)
        left = conversation.branches if conversation.head_id is None else (*conversation.branches, conversation.head_id)
        self._left = tuple(end for end in left if end not in begins)
        self._failed = set[str]()
        """The ends of the answers that have failed: the chat goes on with another one, if there is one."""
        self.saving = asyncio.Lock()

    async def add(
        self, store: HistoryStore, place: int, before: Conversation, after: Conversation, entry: Entry, events: Any
    ) -> Conversation:
        """Store the next entry of one branch. `before` and `after` are the conversation as its journal has it."""
        async with self.saving:
            ends = [*self._ends]
            ends[place] = entry.id
            new = [end for begin, end in zip(self._begins, ends, strict=True) if end is not None and end != begin]
            begun = {begin for begin, end in zip(self._begins, ends, strict=True) if begin != end}
            written = [end for end in ends if end is not None and end not in begun]
            failed = self._failed | ({entry.id} if entry.note.ended == "error" else set[str]())
            head = next((end for end in new if end not in failed), (*new, entry.id)[0])
            shared = self.conversation
            self.conversation = await store.save(
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
            return replace(after, title=self.conversation.title, revision=self.conversation.revision)


@dataclass(frozen=True)
class AnswerBranch:
    """The place of one answer in a shared conversation. `ids` are those of the messages to all models.

    `is_blind`: the names of the models are hidden until the visitor votes.
    """

    shared: SharedConversation
    place: int
    ids: tuple[str, ...]
    is_blind: bool = False

    @property
    def id(self) -> str:
        """The id of the message to this model."""
        return self.ids[self.place]

    def marked(self, note: Note) -> Note:
        """Return the note of the message to this model."""
        return replace(note, compared=self.ids, is_blind=self.is_blind)


class BranchJournal(StoreJournal):
    """The journal of one of several answers to a message."""

    def __init__(self, branch: AnswerBranch, *given: Any) -> None:
        super().__init__(*given)
        self._branch = branch

    async def write(self, message: ModelMessage, note: Note) -> None:
        """Implement `StoreJournal.write`. The first message gets the mark."""
        await super().write(message, note if self.first_write.done() else self._branch.marked(note))

    async def keep_failed(self, content: Any, note: Note) -> None:
        """Store the message of an answer that could not begin. `note` says why."""
        id_ = self._branch.id
        message = ModelRequest([UserPromptPart(content)])
        kept = await with_references(
            self._media, self.conversation.owner, message, reference_of(self.conversation.id, id_)
        )
        marked = self._branch.marked(note)
        await self._add(Entry(id=id_, parent_id=self.conversation.head_id, message=kept, note=marked), None)

    async def _add(self, entry: Entry, events: RunEvents | None) -> Conversation:
        before, after = self.conversation, self._advance(entry)
        return await self._branch.shared.add(self._store, self._branch.place, before, after, entry, events)


async def begins_of(
    store: HistoryStore, conversation: Conversation, models: Sequence[str], *, each_from_own: bool
) -> Sequence[str | None]:
    """Return the entry that the message to each of these models follows.

    That is the end of the shown branch, or with `each_from_own` the model's own answer, if the last turn has one.
    """
    turn = await last_turn(store, conversation) if each_from_own and conversation.head_id is not None else ()
    columns = await columns_of(store, conversation, turn)
    own = {answer[-1].note.model: answer[-1].id for answers in columns.values() for answer in answers}
    return [own.get(model, conversation.head_id) for model in models]


async def columns_of(store: HistoryStore, conversation: Conversation, shown: Sequence[Entry]) -> Columns:
    """Return the answers of all models to the messages among these entries, as far as several are stored."""
    groups = {entry.id: tuple(dict.fromkeys(entry.note.compared)) for entry in shown if entry.note.compared}
    groups = {id_: ids for id_, ids in groups.items() if id_ in ids and len(ids) <= MOST_MODELS}
    if not groups:
        return {}
    turns = dict[str, Sequence[Entry]]()
    for number, entry in enumerate(shown):
        if entry.id in groups:
            turns[entry.id] = [entry, *takewhile(lambda one: not is_prompt(one), islice(shown, number + 1, None))]
    others = {id_ for ids in groups.values() for id_ in ids} - turns.keys()
    messages = await store.find(conversation, ids=others, most_bytes=VIEW_BYTES) if others else ()
    left, room = MOST_FOLLOWING, VIEW_BYTES
    for message in reversed(messages):
        if left <= 0 or room <= 0:
            break
        ids = await store.following(conversation, message.id)
        left -= len(ids)
        turns[message.id] = turn = await _turn_of(store, conversation, message, ids, room)
        room -= sum(count_bytes(entry.message) for entry in turn)
    columns = {id_: [turns[one] for one in ids if one in turns] for id_, ids in groups.items()}
    return {id_: answers for id_, answers in columns.items() if len(answers) > 1}


async def _turn_of(
    store: HistoryStore, conversation: Conversation, message: Entry, ids: Sequence[str], most_bytes: int
) -> Sequence[Entry]:
    """Return a message and what follows it last, up to the next message. `ids` are those of it and all after it.

    What comes after about `most_bytes` is left out.
    """
    following, at, size = defaultdict[str | None, list[Entry]](list), 1, 0
    while at < min(len(ids), MOST_ENTRIES) and size < most_bytes:
        page = await store.find(conversation, ids=ids[at : at + PAGE], most_bytes=most_bytes - size)
        if not page:  # deleted meanwhile
            break
        at += len(page)
        for entry in page:
            size += count_bytes(entry.message)
            if not is_prompt(entry):
                following[entry.parent_id].append(entry)
        if any(map(is_prompt, page)):
            break
    turn = [message]
    while turn[-1].id in following:
        turn.append(following[turn[-1].id][-1])
    return turn


def has_hidden_model(entry: Entry, votes: Iterable[Vote]) -> bool:
    """Return True if the name of the model that answers this message is hidden: the visitor has not voted."""
    return entry.note.is_blind and all(vote.message not in entry.note.compared for vote in votes)


def with_columns(
    turns: Sequence[ConversationTurn], columns: Columns, name_of: Callable[[str], str], votes: Iterable[Vote] = ()
) -> list[ConversationTurn]:
    """Return the turns with the answers that are shown side by side, and blind ones also if there is only one."""

    def stored(turn: ConversationTurn, user: Entry) -> ConversationTurn:
        answers = columns.get(user.id, ())
        others = [to_turns(answer)[-1] for answer in answers]
        named = [replace(one, model_name=name_of(one.model) if one.model else "") for one in others]
        both = tuple(turn if _is_same(one, turn) else one for one in named)
        return replace(turn, columns=both if answers else turn.columns, is_blind=has_hidden_model(user, votes))

    return [stored(turn, turn.user) if turn.user else turn for turn in turns]


def _has_failed(turn: ConversationTurn) -> bool:
    return turn.note is not None and turn.note.ended == "error"


def _is_same(one: ConversationTurn, other: ConversationTurn) -> bool:
    return one.user is not None and other.user is not None and one.user.id == other.user.id


class GrowingTurn(Protocol):
    """The turn of a running answer. See `agent.web.chat.views.RunningTurn`."""

    live: RunningAnswer

    @property
    def ended(self) -> int:
        """The number of answers that have ended since the turn was made."""
        ...

    @property
    def is_shown(self) -> bool:
        """False if the chat has ended with another answer than the one that is shown."""
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
        return sum(one.ended for one in self._running.values())

    @property
    def is_shown(self) -> bool:
        """Implement `GrowingTurn.is_shown`. One that fails leaves the chat to the next (`SharedConversation`)."""
        turn = self.turn(0.0)
        return not _has_failed(turn) or all(map(_has_failed, turn.columns))

    def turn(self, watched_since: float) -> ConversationTurn:
        columns = [self._column(one, watched_since) for one in self._shown.columns]
        shown = next(one for one in columns if _is_same(one, self._shown))
        note = None if any(one.note is None for one in columns) else shown.note
        return replace(
            shown, note=note, columns=tuple(columns), versions=self._shown.versions, is_blind=self._shown.is_blind
        )

    def _column(self, stored: ConversationTurn, watched_since: float) -> ConversationTurn:
        running = self._running.get(stored.user.id) if stored.user else None
        return stored if running is None else replace(running.turn(watched_since), wait=running.live.waiting)


def tally(votes: Iterable[Vote]) -> dict[str, dict[str, int]]:
    """Return how often each model has won, lost, tied and was bad with all others."""
    counts = defaultdict[str, dict[str, int]](lambda: dict.fromkeys(("won", "lost", "tied", "bad"), 0))
    for vote in votes:
        for number, model in enumerate(vote.models):
            won = "won" if vote.choice == str(number) else "lost"
            counts[model][{TIE: "tied", ALL_BAD: "bad"}.get(vote.choice, won)] += 1
    return dict(sorted(counts.items(), key=lambda one: (-one[1]["won"], one[1]["lost"], one[0])))


def pairs(votes: Iterable[Vote]) -> list[dict[str, Any]]:
    """Return for each two models how often the first one was better, the second one, and neither."""
    counts = dict[tuple[str, str], list[int]]()
    for vote in votes:
        best = vote.models[int(vote.choice)] if vote.choice.isdigit() else ""
        for one, other in combinations(sorted(vote.models), 2):
            if best in (one, other, ""):
                counts.setdefault((one, other), [0, 0, 0])[(one, other, "").index(best)] += 1
    return [{"models": [*both], "first": a, "second": b, "neither": c} for both, (a, b, c) in counts.items()]


def votes_table(votes: Iterable[Vote]) -> str:
    """Return the votes as CSV. A name that a table would take for a formula begins with an apostrophe."""
    text = StringIO()
    table = writer(text)
    table.writerow(["at", "choice", "best", *(f"model_{letter}" for letter in "abcd")])
    for vote in votes:
        names = [f"'{name}" if name[:1] in FORMULA else name for name in vote.models]
        best = names[int(vote.choice)] if vote.choice.isdigit() else ""
        table.writerow([vote.at.isoformat(), vote.choice, best, *names])
    return text.getvalue()
