"""Converts stored entries to turns, and a run's responses to bubbles: pure, the same live as after a reload.

Knows nothing of how a page shows them.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from time import monotonic
from typing import Any
from unicodedata import category

from pydantic_ai.messages import (
    AudioUrl,
    Citation,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    TextPart,
    UserPromptPart,
)

from agent.citations import moved
from agent.files.store import display_name, id_of
from agent.history import Entry, Note, Timings
from agent.i18n.text import _
from agent.limits import FAILURE_POLICIES
from agent.providers.retry import Wait
from agent.responses import (
    PART_SEPARATOR,
    BubbleMarker,
    Piece,
    Response,
    ResponseType,
    make_response,
    pieces_with_texts,
    steered_text,
)
from agent.transfer.document import turns_of
from agent.web.chat.questions import Call, QuestionId, open_questions


@dataclass(frozen=True, slots=True)
class MessageVersions:
    """The versions of a question or of an answer in their order, and which of them is shown, from 1.

    `ids` are the ids of messages of the visitor: choosing one shows that version.
    """

    ids: tuple[str, ...]
    number: int


@dataclass(frozen=True, slots=True)
class TurnVersions:
    """The versions of a turn's question and of its answer. None if there is only the one that is shown."""

    question: MessageVersions | None = None
    answer: MessageVersions | None = None


ONLY_ONE = TurnVersions()


SILENCE_SECONDS = 3.0
"""Seconds of silence within a text after which the page shows that it waits."""
UNSEEN_TIMES = repeat(math.inf)
"""The arrival times of stored responses, which nobody saw arrive."""
CUT = ("length", "interrupted", "error", "cancelled")
"""The endings after which an answer with text can be continued."""
INVISIBLE = ("Cc", "Cf", "Zs", "Zl", "Zp", "Mn", "Me")
"""Unicode categories of characters that show nothing alone. An unassigned one can be a new emoji."""
BLANK_LETTERS = "\u115f\u1160\u3164\uffa0\u2800"
"""The fillers of Hangul and the empty pattern of Braille, which count as letters and symbols."""
_EMPTY_ANSWERS = [FAILURE_POLICIES[kind].sentence for kind in ("empty", "empty_truncated")]
NO_ENDING = Note(ended="interrupted", detail=_("Interrupted: the server went down before the answer was finished."))


@dataclass(slots=True)
class TurnBubble:
    """One bubble: its type, its text or call, and for a result the id of its call.

    `began` is its start on the monotonic clock, if that was observed. `citations` have positions in the text. A running
    answer has none before its end. `output` are the texts that the tool of a running call has yielded.
    """

    first: Response
    texts: list[str]
    began: float = math.inf
    citations: list[Citation] = field(default_factory=list[Citation])
    output: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        """All its deltas joined."""
        return "".join(self.texts)

    @property
    def content(self) -> Any:
        """Its text, or the call or result that it shows. Files of a result are given by their URLs."""
        if isinstance(self.first.content, str):
            return self.text
        content: dict[str, Any] = {**self.first.content}
        if "files" in content:
            kept = [one for one in content["files"] if isinstance(one, ImageUrl | AudioUrl | DocumentUrl)]
            content["files"] = [
                {"url": one.url, "media_type": one.media_type, "name": display_name(one.identifier, one.media_type)}
                for one in kept
            ]
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationTurn:
    """A user's message (None if the history begins within a turn) and the bubbles of the answer.

    `note` says how the turn ended; None while it runs. `reasoning` are the seconds of its reasoning bubbles. `replies`
    are the replies so far to a suspended answer, by the ids of the waiting calls; None if nothing is asked. `files` are
    the ids of the files that the model made. `watched_since` is when the page began to watch a running turn, and
    `quiet_since` is when the last run began or last emitted something, both on the monotonic clock. `run` is the id of
    the last run, and `model` of its model. `model_name` is that model's name, or "" if it is not known. `columns` are
    the answers of several models, this one among them, and `wait` is what one of them waits for. With
    `is_blind`, the names of these models are hidden.
    `summary` is the text that is sent instead of this turn and all before it, or "". `steered` are the ids of the
    messages that have steered the answer, and `can_steer` says that it may take another one.
    """

    user: Entry | None
    bubbles: Sequence[TurnBubble]
    note: Note | None
    reasoning: tuple[float, ...] = ()
    replies: Mapping[str, str] | None = None
    files: tuple[str, ...] = ()
    watched_since: float = 0.0
    run: str = ""
    quiet_since: float = math.inf
    versions: TurnVersions = ONLY_ONE
    model: str = ""
    model_name: str = ""
    columns: "tuple[ConversationTurn, ...]" = ()
    is_blind: bool = False
    wait: Wait | None = None
    summary: str = ""
    steered: tuple[str, ...] = ()
    can_steer: bool = False

    @property
    def is_empty(self) -> bool:
        """True if the model finished without an answer: no text since the last result, and no file."""
        if self.note is None or self.note.ended != "stop" or self.files:
            return False
        text = ""
        for bubble in self.bubbles:
            if bubble.first.type in ("tool_call_result", "user_message"):
                text = ""
            elif bubble.first.type == "output_text":
                text += bubble.text
        return not text.strip()

    @property
    def is_waiting(self) -> bool:
        """True if nothing comes from the model: no text yet, none since the last result, or silence within a text."""
        if self.note is not None or unanswered_tool_calls(self.bubbles):
            return False
        last = self.bubbles[-1].first.type if self.bubbles else "tool_call_result"
        return last in ("tool_call_result", "user_message") or (
            last == "output_text" and monotonic() - self.quiet_since >= SILENCE_SECONDS
        )

    @property
    def question(self) -> Call | None:
        """The first call that still waits for a person, or the first question below one."""
        return next((call for call in self.open_questions if call["id"] not in (self.replies or {})), None)

    @property
    def open_questions(self) -> list[Call]:
        """The questions and approvals of a suspended answer, also those that have a reply."""
        return [*open_questions(unanswered_tool_calls(self.bubbles), self.note)] if self.replies is not None else []


def unanswered_tool_calls(bubbles: Sequence[TurnBubble]) -> list[Call]:
    """Return the calls without a result."""
    answered = {call_id(bubble) for bubble in bubbles if bubble.first.type == "tool_call_result"}
    return [one.content for one in bubbles if one.first.type == "tool_call" and call_id(one) not in answered]


def fold_responses(
    bubbles: list[TurnBubble], responses: Iterable[Response], said_at: Iterable[float] = UNSEEN_TIMES
) -> None:
    """Add responses of one run to their bubbles. `is_type_switched` alone decides where a new bubble begins."""
    added = AddedBubbles(bubbles)
    for response, at in zip(responses, said_at, strict=False):
        added.fold(response, at)


def fold_output(bubbles: Sequence[TurnBubble], call: str, text: str) -> None:
    """Add a text that a running tool has yielded to the bubble of its call."""
    for bubble in reversed(bubbles):
        if bubble.first.type == "tool_call" and call_id(bubble) == call:
            bubble.output.append(text)
            return


def relabel_last(bubbles: list[TurnBubble], kind: ResponseType) -> None:
    """Give the last bubble another type. It joins the bubble before it if that has this type already."""
    if len(bubbles) > 1 and bubbles[-2].first.type == kind:
        bubbles[-2].texts += [PART_SEPARATOR, *bubbles.pop().texts]
    elif bubbles:
        bubbles[-1].first = make_response(kind, bubbles[-1].first.content, is_type_switched=True)


class AddedBubbles:
    """Adds bubbles at the end. Puts a result before those of later calls, because results are stored in this order.

    The results before number `since` are those of an earlier run or message, which stay where they are.
    """

    def __init__(self, bubbles: list[TurnBubble], since: int = 0) -> None:
        self._bubbles, self.since = bubbles, since
        self._places: dict[Any, int] | None = None
        """The places of the calls before the results at the end. None if it is not known."""
        self._first, self._order = 0, list[int]()
        """The number of the first result that can move, and for each from there on the place of its call."""

    def add(self, bubble: TurnBubble) -> None:
        """Add a bubble."""
        if bubble.first.type != "tool_call_result":
            self._places = None
            self._bubbles.append(bubble)
            return
        places = self._calls_before() if self._places is None else self._places
        if self._first < self.since:
            self._first, self._order = self.since, []
        self._insert(bubble, places.get(call_id(bubble)))

    def fold(self, response: Response, at: float = math.inf) -> None:
        """Add a response that arrived at this time to its bubble."""
        text = response.content if isinstance(response.content, str) else ""
        if response.is_type_switched:
            self.add(TurnBubble(response, [text], at))
        else:
            self._bubbles[-1].texts.append(text)

    def _insert(self, bubble: TurnBubble, place: int | None) -> None:
        if place is None:  # the result of an unknown call: none moves before it
            self._bubbles.append(bubble)
            self._first, self._order = len(self._bubbles), []
            return
        number = bisect_right(self._order, place)
        self._order.insert(number, place)
        self._bubbles.insert(self._first + number, bubble)

    def _calls_before(self) -> dict[Any, int]:
        """Look at the results at the end, and return the places of the calls before them."""
        first = len(self._bubbles)
        while first and self._bubbles[first - 1].first.type == "tool_call_result":
            first -= 1
        places = dict[Any, int]()
        for number in range(first - 1, -1, -1):
            if self._bubbles[number].first.type != "tool_call":
                break
            places[call_id(self._bubbles[number])] = number
        self._places, self._first, self._order = places, max(first, self.since), []
        results = self._bubbles[self._first :]
        del self._bubbles[self._first :]
        for result in results:
            self._insert(result, places.get(call_id(result)))
        return places


def _folded(messages: Iterable[ModelMessage]) -> list[TurnBubble]:
    """Return the bubbles of stored messages, with their citations."""
    bubbles, stamp, length = list[TurnBubble](), BubbleMarker(), 0
    added = AddedBubbles(bubbles)
    for message in messages:
        added.since = len(bubbles)
        for piece, part in pieces_with_texts(message):
            response = stamp(piece)
            added.fold(response)
            length = (0 if response.is_type_switched else length) + len(bubbles[-1].texts[-1])
            if part is not None and part.citations:
                bubbles[-1].citations += moved(part.citations, length - len(part.content))
    return bubbles


def to_turns(entries: Sequence[Entry], *, replies: Mapping[QuestionId, str] | None = None) -> list[ConversationTurn]:
    """Return stored entries as turns. A turn without an ending was lost.

    `replies` are replies to questions. Those to the last turn count if that is suspended.
    """
    out: list[ConversationTurn] = []
    groups = [*turns_of(entries)]
    for group in groups:
        user = group[0] if is_prompt(group[0]) else None
        bubbles = _folded(entry.message for entry in group)
        # A resumed or continued turn has several runs and ended with the last one.
        ends = {entry.note.run_id: entry.note for entry in group if entry.note.ended}
        last = group[-1].note.run_id
        note = with_earlier_figures(ends.get(last, NO_ENDING), [end for run, end in ends.items() if run != last])
        fold_responses(bubbles, map(BubbleMarker(), _error(note)))
        open_ = group is groups[-1] and note.ended == "suspended"
        given = {question.call: text for question, text in (replies or {}).items() if question.run == last}
        seconds = [one for end in ends.values() if end.timings for one in end.timings.reasoning]
        out.append(
            ConversationTurn(
                user=user,
                bubbles=bubbles,
                note=note,
                reasoning=tuple(seconds),
                replies=given if open_ else None,
                files=generated_files([entry.message for entry in group]),
                run=last,
                model=next((entry.note.model for entry in reversed(group) if entry.note.model), ""),
                steered=steered_ids(group),
            )
        )
    return out


def steered_ids(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Return the ids of the messages that have steered an answer."""
    return tuple(entry.id for entry in entries if steered_text(entry.message) is not None)


def with_earlier_figures(note: Note, earlier: Sequence[Note]) -> Note:
    """Return the note of a turn whose answer was continued. Its figures are those of all its parts."""
    for before in reversed(earlier):
        if before.ended not in CUT:
            break
        costs = [cost for cost in (before.cost, note.cost) if cost is not None]
        note = replace(note, timings=_sum(before.timings, note.timings), cost=sum(costs) if costs else None)
    return note


def _sum(before: Timings | None, after: Timings | None) -> Timings | None:
    if before is None or after is None:
        return before or after
    return Timings(
        first_token=after.first_token if before.first_token is None else before.first_token,
        total=before.total + after.total,
        queued=before.queued + after.queued,
        generating=before.generating + after.generating,
        generated=before.generated + after.generated,
        output_tokens=before.output_tokens + after.output_tokens,
        input_tokens=before.input_tokens + after.input_tokens,
        cached_tokens=before.cached_tokens + after.cached_tokens,
        estimated=before.estimated or after.estimated,
        reasoning=(*before.reasoning, *after.reasoning),
    )


def generated_files(messages: Sequence[ModelMessage], owner: str = "") -> tuple[str, ...]:
    """Return the ids of the files that the model made since the last prompt, in a run's messages or in stored ones."""
    parts = [part for message in _newest_turn(messages) for part in message.parts]
    files = [part.content for part in parts if isinstance(part, FilePart)]
    return tuple(id_of(owner, file) if file.data else file.identifier for file in files)


def cited_texts(messages: Sequence[ModelMessage]) -> tuple[TurnBubble, ...]:
    """Return the text bubbles of the messages since the last prompt, with citations; none if nothing is cited."""
    turn = _newest_turn(messages)
    if not any(isinstance(part, TextPart) and part.citations for one in turn for part in one.parts):
        return ()
    return tuple(bubble for bubble in _folded(turn) if bubble.first.type == "output_text")


def _newest_turn(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return the messages from the last prompt on, or all. Searches from the end, as a conversation can be long."""
    for at in range(len(messages) - 1, -1, -1):
        is_begin = any(isinstance(part, UserPromptPart) for part in messages[at].parts)
        if is_begin and steered_text(messages[at]) is None:
            return messages[at:]
    return messages


def with_citations(bubbles: Sequence[TurnBubble], cited: Sequence[TurnBubble]) -> Sequence[TurnBubble]:
    """Return the bubbles of a turn with the citations of those with the same texts, compared from the end."""
    if not cited:
        return bubbles
    out, left = list(bubbles), list(cited)
    for n in reversed(range(len(out))):
        if left and out[n].first.type == "output_text" and out[n].text == (known := left.pop()).text:
            out[n] = replace(out[n], citations=known.citations)
    return out


def message_text(entry: Entry) -> str:
    """Return the text of a user's message without its attachments."""
    return "\n\n".join(part for part in content_parts(entry) if isinstance(part, str))


def has_visible(text: str) -> bool:
    """Return True if a text has a character that people see, and not only spaces, format characters and marks."""
    return any(category(character) not in INVISIBLE and character not in BLANK_LETTERS for character in text)


def has_first_words(entries: Sequence[Entry], branch: Sequence[Entry]) -> bool:
    """Return True if this branch begins with the text with which its conversation began.

    `entries` are all messages with which it has begun, in order. The title of the conversation tells of that text.
    """
    return message_text(entries[0]) == message_text(branch[0])


def is_unfinished(note: Note) -> bool:
    """Return True if a limit, a stop, a failure or the end of the server cut the answer with this last note."""
    return (note.ended or NO_ENDING.ended) in CUT


def is_failed_as_empty(note: Note | None) -> bool:
    """Return True if the run failed because nothing of the model's answer can be shown."""
    return note is not None and note.ended == "error" and str(note.detail) in _EMPTY_ANSWERS


def is_prompt(entry: Entry) -> bool:
    """Return True if the entry is a message of the visitor that begins a turn: one that has steered a run does not."""
    return message_content(entry) is not None and steered_text(entry.message) is None


def content_parts(entry: Entry) -> list[Any]:
    """Return the parts of the visitor's message. A message of text alone has one; another entry has none."""
    content = message_content(entry)
    return [content] if isinstance(content, str) else list(content or ())


def message_content(entry: Entry) -> Any:
    """Return the text or parts of the visitor's message, or None if the entry is another message."""
    if isinstance(entry.message, ModelRequest):
        for part in entry.message.parts:
            if isinstance(part, UserPromptPart):
                return part.content
    return None


def _error(note: Note) -> Iterator[Piece]:
    if note.ended in ("error", "limit", "interrupted"):
        yield "error", note.detail


def call_id(bubble: TurnBubble) -> Any:
    """Return the id of the call that a bubble shows, or of the call for its result."""
    content = bubble.first.content
    return content["id"] if isinstance(content, Mapping) else None
