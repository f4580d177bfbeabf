"""Reads what a page shows of a conversation: its newest turns, and the answer that is being written."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import monotonic

from agent.errors import NotFound
from agent.history import NO_CONVERSATION, NO_ENTRY, ChatSummary, Conversation, Entry, HistoryStore, Vote
from agent.history.search import fold, searchable_text
from agent.i18n.text import LocalizedText
from agent.i18n.translator import ENGLISH, Translator
from agent.providers.retry import Wait
from agent.system.request_queue import Slot
from agent.system.threads import LOOKS, TURNS
from agent.web.chat.answers import AnswersTogether, RunningAnswer, RunningAnswers
from agent.web.chat.branches import BranchRow, hidden_after, read_tree, versions_in
from agent.web.chat.questions import QuestionId, Replies
from agent.web.chat.side_by_side import Columns, ColumnsTurn, columns_of, with_columns
from agent.web.chat.stored_entries import VIEW_BYTES, WINDOW, entries_before, entries_of_turn, newest_entries
from agent.web.chat.transcript import (
    ONLY_ONE,
    AddedBubbles,
    ConversationTurn,
    TurnBubble,
    TurnVersions,
    is_prompt,
    steered_ids,
    to_turns,
    with_citations,
    with_earlier_figures,
)

SHORT_WAIT_SECONDS = 5
"""A shorter wait is shown without counting its seconds down."""
COMPLETE = ("stop", "length", "interrupted")
"""The endings after which a waiting message is sent. An interruption is the end of the server, not of the model."""


def is_complete(turn: ConversationTurn) -> bool:
    """Return True if a waiting message can follow: the answer has not failed, was not stopped, and asks nothing."""
    ended = turn.note.ended if turn.note is not None else None
    return ended in COMPLETE and turn.question is None and not turn.is_empty


@dataclass(frozen=True, kw_only=True)
class ChatView:
    """The newest turns of a conversation, without the one that is being written.

    `has_earlier` is True if older entries are stored; then the first turn can be incomplete. `live` is the answer that
    is being written, if any. `is_missing` is True if the owner has no such conversation. `hidden` is the id of the
    message that came next before it was taken back, or "".
    """

    turns: Sequence[ConversationTurn] = ()
    has_earlier: bool = False
    live: RunningAnswer | None = None
    is_missing: bool = False
    hidden: str = ""

    @property
    def is_complete(self) -> bool:
        """True if the last answer is complete, so that a waiting message can follow it without asking the visitor."""
        return self.live is None and bool(self.turns) and is_complete(self.turns[-1])


class RunningTurn:
    """The turn of a running answer: what was stored of it before the run, and what the run has said so far.

    `entries` are the newest entries of the conversation, and `versions` those of its turns that have several.
    `before` are the turns before this one. `name_of` returns the name of the model with an id. `is_stored`: the entries
    have the end of the run, too.
    """

    def __init__(
        self,
        live: RunningAnswer,
        entries: Sequence[Entry],
        versions: Mapping[str, TurnVersions],
        name_of: Callable[[str], str] = str,
        *,
        is_stored: bool = False,
    ) -> None:
        self.live, self._name_of = live, name_of
        self._is_whole = live.resumed and is_stored and bool(entries)
        *before, own = to_turns(entries) if self._is_whole else _split(live, entries)
        *self.before, self._stored = with_model_names(with_versions([*before, own], versions), name_of)

    def hide_names(self, columns: Columns, votes: Sequence[Vote]) -> None:
        """Add these columns to the turns before, and hide names on which the visitor has not voted."""
        self.before = with_columns(self.before, columns, self._name_of, votes)
        (self._stored,) = with_columns([self._stored], {}, self._name_of, votes)

    @property
    def ended(self) -> int:
        return int(self.live.ending is not None)

    @property
    def is_shown(self) -> bool:
        return True

    def turn(self, watched_since: float) -> ConversationTurn:
        """Return the turn for a page that watches since this time on the monotonic clock."""
        live, stored = self.live, self._stored
        if self._is_whole:  # a text that went on has no mark where it did
            return stored
        earlier = [stored.note] if stored.note else []
        ending = live.ending
        bubbles = join_bubbles(stored.bubbles, live.bubbles)
        if ending and ending.note.model:  # of a text that another model has continued
            (stored,) = with_model_names([replace(stored, model=ending.note.model)], self._name_of)
        return replace(
            stored,
            bubbles=with_citations(bubbles, ending.cited) if ending else bubbles,
            note=with_earlier_figures(ending.note, earlier) if ending else None,
            reasoning=(*stored.reasoning, *live.reasoning),
            replies={} if ending and ending.is_suspended else None,
            files=ending.files if ending else stored.files,
            watched_since=watched_since,
            quiet_since=live.quiet_since,
            steered=tuple(dict.fromkeys((*stored.steered, *live.steered))),
            can_steer=live.can_steer,
        )


def _split(live: RunningAnswer, entries: Sequence[Entry]) -> list[ConversationTurn]:
    """Return the turns before the run, and then the run's own turn with what was stored before the run."""
    own = [entry for entry in entries if entry.note.run_id == live.run_id]
    before = to_turns([entry for entry in entries if entry.note.run_id != live.run_id])
    if not (live.resumed and before):
        user, model = (own[0], own[0].note.model) if own else (None, "")
        ids = steered_ids(own)
        return [*before, ConversationTurn(user=user, bubbles=(), note=None, run=live.run_id, model=model, steered=ids)]
    turn = before.pop()
    bubbles = [bubble for bubble in turn.bubbles if bubble.first.type != "error"]  # what interrupted it is over
    for bubble in bubbles:
        bubble.began = live.started_at  # calls that waited for a person begin now
    return [*before, replace(turn, run=live.run_id, bubbles=bubbles)]


def with_versions(turns: Sequence[ConversationTurn], versions: Mapping[str, TurnVersions]) -> list[ConversationTurn]:
    """Return the turns with their versions, which are given by the ids of the messages."""
    return [replace(turn, versions=versions.get(turn.user.id, ONLY_ONE)) if turn.user else turn for turn in turns]


def with_model_names(turns: Sequence[ConversationTurn], name_of: Callable[[str], str]) -> list[ConversationTurn]:
    """Return the turns with the names of their models.

    It does not depend on other turns, because a page keeps the messages that it has, and each version has its own.
    """
    return [replace(turn, model_name=name_of(turn.model)) if turn.model else turn for turn in turns]


def with_summary(turns: Sequence[ConversationTurn], summary: ChatSummary | None) -> list[ConversationTurn]:
    """Return the turns, with the summary in the last one that it stands for."""
    if summary is None:
        return [*turns]
    is_last = [turn.user is not None and turn.user.id == summary.message for turn in turns]
    return [replace(one, summary=summary.text) if last else one for one, last in zip(turns, is_last, strict=True)]


def join_bubbles(stored: Sequence[TurnBubble], new: Sequence[TurnBubble]) -> Sequence[TurnBubble]:
    """Return the bubbles of a turn, as after a reload.

    A text that continues a stored text goes on in its bubble. Results of stored calls have the order of these calls.
    """
    out = [*stored]
    if stored and new and stored[-1].first.type == new[0].first.type == "output_text":
        out[-1] = replace(stored[-1], texts=[*stored[-1].texts, *new[0].texts])
        new = new[1:]
    added = AddedBubbles(out, since=len(stored))
    for bubble in new:
        added.add(bubble)
    return out


def wait_text(wait: Wait | None, translator: Translator = ENGLISH) -> str:
    """Return why nothing comes from the model at the moment, or "" if the run does not wait."""
    if wait is None:
        return ""
    sentence = wait.sentence
    if wait.ahead or wait.seconds < SHORT_WAIT_SECONDS:
        return translator(sentence)
    left = math.ceil(max(0.0, wait.until - monotonic()))
    return translator(LocalizedText(sentence.message, {**sentence.values, "seconds": left}))


FOUND_PAGES, FOUND_MESSAGES, FOUND_BYTES = 4, 500, 1_000_000
"""The most that one search in a chat reads before it answers with the matches so far."""


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A text that is in a message of the visitor or in its answer, so often. `message` is the id of the former."""

    message: str
    is_answer: bool
    count: int


def _counted(entries: Sequence[Entry], needle: str) -> list[tuple[Entry, int]]:
    return [(one, " ".join(fold(searchable_text(one)).split()).count(needle)) for one in entries]


class ChatViews:
    """Reads views from the store. `running` are the answers that are being written, `replies` those of visitors.

    `name_of` returns the name of the model with an id.
    """

    def __init__(
        self, store: HistoryStore, running: RunningAnswers, replies: Replies, name_of: Callable[[str], str]
    ) -> None:
        self._store, self._running, self._replies, self._name_of = store, running, replies, name_of

    async def view(self, owner: str, conversation_id: str | None, window: int = WINDOW) -> ChatView:
        """Return the newest turns of a stored conversation. It is missing if this owner does not have it."""
        live = await self._running.get(conversation_id, owner)
        while True:
            if isinstance(live, AnswersTogether):
                await live.is_stored.wait()
            try:
                conversation, entries, has_earlier = await newest_entries(self._store, owner, conversation_id, window)
            except NotFound:
                return ChatView(is_missing=True)
            around, columns = await self._beside(conversation, entries)
            before, live = live, await self._running.get(conversation_id, owner)
            if live is before:
                break  # otherwise an answer has begun or ended meanwhile, and the entries can lack its end
        if live is not None:
            running = await TURNS.run(_running_turn, live, conversation, entries, around, columns, self._name_of)
            before = with_summary(running.before, conversation.summary)
            return ChatView(turns=before, has_earlier=has_earlier, live=live)
        hidden = await hidden_after(self._store, conversation, around)
        turns = await self._turns(conversation, entries, around, columns, self._replies.get(conversation_id))
        turns = with_summary(turns, conversation.summary)
        return ChatView(turns=turns, has_earlier=has_earlier, hidden=hidden)

    async def with_turn(self, owner: str, conversation_id: str, before: str = "", window: int = WINDOW) -> ChatView:
        """Return a view with a complete turn, if there is one: of the newest turns, or of those before this message.

        Raises `NotFound`.
        """
        while True:
            read = (
                self._earlier(owner, conversation_id, before, window)
                if before
                else self.view(owner, conversation_id, window)
            )
            view = await read
            if view.is_missing:
                raise NotFound(NO_CONVERSATION)
            if not view.has_earlier or any(turn.user for turn in view.turns):
                return view
            window *= 4  # a turn can have hundreds of messages

    async def _earlier(self, owner: str, conversation_id: str, before: str, window: int) -> ChatView:
        conversation = await self._store.get(conversation_id, owner=owner)
        if not any(map(is_prompt, await self._store.find(conversation, ids=[before]))):
            raise NotFound(NO_ENTRY)
        entries, has_earlier = await entries_before(self._store, replace(conversation, head_id=before), window + 1)
        turns = await self._turns(conversation, entries, *await self._beside(conversation, entries))
        turns = with_summary(turns, conversation.summary)
        return ChatView(turns=turns[:-1], has_earlier=has_earlier)

    async def turn(self, owner: str, conversation_id: str, message: str) -> ConversationTurn:
        """Return the turn of the shown branch that begins with this message. Raises `NotFound`."""
        if (live := await self._running.get(conversation_id, owner)) is not None:
            turn = (await self.running_turn(live)).turn(monotonic())
            if turn.user is not None and turn.user.id == message:
                return turn
        entries = await entries_of_turn(self._store, await self._store.get(conversation_id, owner=owner), message)
        return (await TURNS.run(to_turns, entries))[0]

    async def tree(self, owner: str, conversation_id: str, slot: Slot = nullcontext) -> tuple[list[BranchRow], bool]:
        """Return the versions in a conversation, see `read_tree`. Raises `NotFound`."""
        rows, is_cut = await read_tree(self._store, await self._store.get(conversation_id, owner=owner), slot)
        return [replace(row, model=self._name_of(row.model) if row.model else "") for row in rows], is_cut

    async def find(
        self, owner: str, conversation_id: str, query: str, before: str = "", slot: Slot = nullcontext
    ) -> tuple[list[MessageHit], str | None]:
        """Return the messages of the shown branch with this text, the newest first, and the entry to go on from.

        A call reads `FOUND_PAGES` pages, each in a slot of its own, but at least one turn. `before` is what the last
        call has returned. Raises `NotFound`.
        """
        conversation: Conversation = await self._store.get(conversation_id, owner=owner)
        if not (needle := " ".join(fold(query).split())):  # each message would have it
            return [], None
        start = end = before or conversation.head_id
        hits, pending, pages = list[MessageHit](), 0, 0
        conversation = replace(conversation, head_id=start)
        while conversation.head_id is not None and (pages < FOUND_PAGES or end == start):
            async with slot():
                entries = await self._store.history(conversation, limit=FOUND_MESSAGES, most_bytes=FOUND_BYTES)
                counted = await LOOKS.run(_counted, entries, needle)
            for entry, count in reversed(counted):
                if not is_prompt(entry):
                    pending += count
                    continue
                hits += [MessageHit(entry.id, True, pending)] if pending else []
                hits += [MessageHit(entry.id, False, count)] if count else []
                pending, end = 0, entry.parent_id
            conversation = replace(conversation, head_id=entries[0].parent_id)
            pages += 1
        return hits, end if conversation.head_id is not None else None

    async def running_turn(self, live: RunningAnswer) -> RunningTurn | ColumnsTurn:
        """Return the turn of an answer that is being written, or that has just ended."""
        if isinstance(live, AnswersTogether):
            await live.is_stored.wait()
        while True:
            is_stored = live.is_end_stored
            conversation, entries, _ = await newest_entries(self._store, live.owner, live.conversation_id, WINDOW)
            if live.is_end_stored == is_stored:
                break  # otherwise it is not known whether the entries have the end
        shown = *await self._beside(conversation, entries), self._name_of
        return await TURNS.run(_running_turn, live, conversation, entries, *shown, is_stored=is_stored)

    async def _turns(
        self,
        conversation: Conversation,
        entries: Sequence[Entry],
        around: Sequence[Entry],
        columns: Columns,
        replies: Mapping[QuestionId, str] | None = None,
    ) -> list[ConversationTurn]:
        """Return the turns of these entries, with their versions, the names of the models, and their columns."""

        def turns() -> list[ConversationTurn]:
            found = with_versions(to_turns(entries, replies=replies), versions_in(around))
            return with_columns(with_model_names(found, self._name_of), columns, self._name_of, conversation.votes)

        return await TURNS.run(turns)

    async def _beside(self, conversation: Conversation, shown: Sequence[Entry]) -> tuple[Sequence[Entry], Columns]:
        """Return the versions of the shown questions with what follows the last entry, and the columns of the answers.

        Of many bytes, the versions are the first ones. A conversation without branches has none, and needs no read.
        """
        around: Sequence[Entry] = ()
        if conversation.branches:
            places = {entry.parent_id for entry in shown if is_prompt(entry)} | {conversation.head_id}
            around = await self._store.find(conversation, after=places, most_bytes=VIEW_BYTES)
        return around, await columns_of(self._store, conversation, shown)


def _running_turn(
    live: RunningAnswer,
    conversation: Conversation,
    entries: Sequence[Entry],
    around: Sequence[Entry],
    columns: Columns,
    name_of: Callable[[str], str],
    *,
    is_stored: bool = False,
) -> RunningTurn | ColumnsTurn:
    """Return the turn that is being written: of one answer, or of all that stand side by side."""
    prompt = next((entry.id for entry in reversed(entries) if is_prompt(entry)), "")
    if prompt not in columns:
        live = live.answers[0] if isinstance(live, AnswersTogether) else live
        one = RunningTurn(live, entries, versions_in(around), name_of, is_stored=is_stored)
        one.hide_names(columns, conversation.votes)
        return one
    named = with_model_names(with_versions(to_turns(entries), versions_in(around)), name_of)
    *before, shown = with_columns(named, columns, name_of, conversation.votes)
    running = dict[str, RunningTurn]()
    for one in live.answers if isinstance(live, AnswersTogether) else [live]:
        for answer in columns[prompt]:
            if any(entry.note.run_id == one.run_id for entry in answer) or (one.resumed and answer[0].id == prompt):
                running[answer[0].id] = RunningTurn(one, answer, {}, name_of, is_stored=is_stored and one.resumed)
    return ColumnsTurn(live, before, shown, running)
