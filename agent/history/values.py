"""The values that a history store keeps: conversations, their messages (entries), and notes on these.

A conversation is a `Conversation` that points at its newest `Entry`; an entry holds one message and points at the entry
before it. Retry, edit and undo are therefore branches: nothing is overwritten.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_urlsafe
from typing import Annotated, Any, cast
from uuid import uuid4

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage
from pydantic_core import PydanticSerializationError

from agent.errors import HistoryError, Limited
from agent.i18n.text import LocalizedText, Value, _
from agent.system.steady_time import SteadyTime


def _loaded(value: object) -> str:
    """Return the text that `_dumped` wrote. Raises `ValueError` for anything else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise ValueError("not a text")
    form = cast(dict[str, Any], value)
    try:
        values = {name: _loaded_value(one) for name, one in form["values"].items()}
        return LocalizedText(str(form["message"]), values, str(form["plural"]), map(_loaded, form["parts"]))
    except (LookupError, AttributeError, TypeError) as error:
        raise ValueError("the values do not fit the text") from error


def _loaded_value(value: object) -> Value:
    return value if isinstance(value, int | float) else _loaded(value)


def _dumped(text: str) -> object:
    if not isinstance(text, LocalizedText):
        return text
    values = {name: _dumped(one) if isinstance(one, str) else one for name, one in text.values.items()}
    parts = [_dumped(one) for one in text.parts]
    return {"message": text.message, "plural": text.plural, "values": values, "parts": parts}


StoredText = Annotated[str, PlainValidator(_loaded), PlainSerializer(_dumped)]
"""The type of a text in a pydantic model that stores a `LocalizedText` with its sentence and values."""


SCHEMA = 1


def new_id() -> str:
    """Return 128 random bits in hexadecimal. Ids cannot be guessed, but knowing one gives no permission."""
    return uuid4().hex


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


_steady = SteadyTime()


def steady_now() -> datetime:
    """Return the current time in UTC, by which things expire: a jump ahead of the clock counts after a day."""
    return min(clock := now(), _steady(clock))


def latest_now() -> datetime:
    """Return the current time in UTC from which periods count: a jump back of the clock counts after a day."""
    return max(clock := now(), _steady(clock))


def steady_of(clock: Callable[[], datetime]) -> Callable[[], datetime]:
    """Return the clock by which the conversations of a store with this clock expire. Only tests set another one."""
    return steady_now if clock is now else clock


def shift_of(clock: Callable[[], datetime]) -> float:
    """Return the seconds by which the clock of a store is ahead of this process's own: 0 except in tests."""
    return 0.0 if clock is now else (clock() - now()).total_seconds()


PROGRAM = "program"
"""The owner of the chats that programs store with `Chat(store=...)`.

No visitor of the page can be this owner: the page makes the ids of visitors, 32 hexadecimal digits, and those of guests
begin with "guest-". So nobody reaches such a chat through the page, even if both use one store and the id is known.
"""
PROGRAM_VECTORS = "program-vectors"
"""The owner of the vectors of such chats, which are in no list of chats. No visitor can be this owner either."""


def vectors_id(chat_id: str) -> str:
    """Return the id of the conversation of `PROGRAM_VECTORS` that has the vectors of a chat of `PROGRAM`.

    A store that deletes the chat deletes them with it.
    """
    return f"vectors-{sha256(chat_id.encode('utf-8', 'replace')).hexdigest()}"


NO_CONVERSATION = _("There is no such conversation.")
NO_ENTRY = _("There is no such message.")
CHANGED_ELSEWHERE = _("This conversation was changed elsewhere; load it again.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The duration of a run in seconds, and its tokens.

    `queued` is the time in the queue of a busy model server; `first_token` and `total` do not include it.
    `generating` is the time in which `generated` tokens were seen to arrive. `reasoning` has the time of each reasoning
    bubble. `cached_tokens` of the `input_tokens` were read from the provider's cache. `estimated` is True if the server
    sent no usage and the tokens were counted here.
    """

    first_token: float | None = None
    total: float = 0.0
    queued: float = 0.0
    generating: float = 0.0
    generated: int = 0
    output_tokens: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    reasoning: tuple[float, ...] = ()


ENTRY_BYTES = 1_000
"""The bytes that a message counts besides its text, where bytes limit a read: a short one costs more than its text."""
MOST_MODELS = 4
"""The most models that answer one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The facts that a reload needs around a message to show the same page. They are never sent to a model.

    `ended` is None while the run goes on, else how the run ended (see `agent.result.FinishReason`), or "interrupted" if
    its process was killed. `detail` is the sentence shown with it. `attachments` are ids, never bytes. `left_out`
    counts earlier messages that were not sent because they did not fit. `omitted` is the sentence on parts that the
    model cannot take. `cost` is in US dollars, None if unknown. `suspension` is what a suspended run needs to be
    resumed, besides its messages, as JSON (see `agent.suspension.seals.pack`). `compared` are the ids of the messages
    that are one message to several models, this one among them. `is_blind`: the names of these models are hidden until
    the visitor votes. `is_written`: the visitor has written the answer.
    """

    run_id: str = ""
    model: str = ""
    ended: str | None = None
    detail: StoredText = ""
    timings: Timings | None = None
    cost: float | None = None
    attachments: tuple[str, ...] = ()
    left_out: int = 0
    omitted: StoredText = ""
    suspension: str = ""
    compared: tuple[str, ...] = ()
    is_blind: bool = False
    is_written: bool = False
    at: datetime = field(default_factory=now)
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message of a conversation. `parent_id` is the entry before it, None for the first."""

    id: str = field(default_factory=new_id)
    parent_id: str | None
    message: ModelMessage
    note: Note = field(default_factory=Note)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSummary:
    """A text that is sent to models instead of the first turns of a conversation.

    `message` is the id of the visitor's message that begins the last of these turns, and `model` wrote the text.
    """

    message: str
    text: str
    model: str = ""
    at: datetime = field(default_factory=now)


TIE, ALL_BAD = "tie", "bad"
"""The choices of a vote that name no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The visitor's choice among the answers of models with hidden names.

    `message` is the id of one of the messages to these `models`. `choice` is the number of the best one, from "0", or
    `TIE` or `ALL_BAD`.
    """

    message: str
    models: tuple[str, ...]
    choice: str
    at: datetime = field(default_factory=now)


MOST_FOLDERS, FOLDER_NAME, FOLDER_INSTRUCTIONS = 30, 60, 4_000
"""The most folders of an owner, and the most characters of a folder's name and of its instructions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder of chats. Models get its `instructions` in each of its chats. Its new chats begin with its `model`."""

    id: str = field(default_factory=new_id)
    name: str
    instructions: str = ""
    model: str = ""


def folders_owner(owner: str) -> str:
    """Return the owner of the document with this owner's folders. No visitor can be this owner."""
    return f"{owner}/folders"


def folders_id(owner: str) -> str:
    """Return the id of the conversation without messages that is the document with this owner's folders."""
    return sha256(f"folders {owner}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation: its owner, the end of its history, and the ends of its other branches.

    `revision` counts saves, 0 before the first. `pending` are the ids of tool calls that wait for an answer. A visitor
    can pin a conversation, so that it stays at the top of the list.

    `source` names the chat of which an imported conversation is a copy, such as "chatgpt:" and its id, and
    `imported_at` is the time of its last import. `summary` stands for its first turns, if there is one. `votes`
    are on the answers of models with hidden names. `folder` is the id of its folder, which can be gone. Only the
    document of an owner has `folders`: see `folders_id`.
    """

    id: str = field(default_factory=new_id)
    owner: str
    title: str = ""
    pinned: bool = False
    head_id: str | None = None
    branches: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    revision: int = 0
    created_at: datetime = field(default_factory=now)
    updated_at: datetime = field(default_factory=now)
    expires_at: datetime | None = None
    source: str = ""
    imported_at: datetime | None = None
    summary: ChatSummary | None = None
    votes: tuple[Vote, ...] = ()
    folder: str = ""
    folders: tuple[Folder, ...] = ()

    @property
    def used_at(self) -> datetime:
        """When it last got messages or was imported. Its expiry counts from then."""
        return max(self.updated_at, self.imported_at or self.updated_at)

    def extended(self, entry: "Entry", open_calls: tuple[str, ...]) -> "Conversation":
        """Return the conversation with this entry as its newest, and with the figures of a run that ends with it.

        `open_calls` are the ids of the calls without a result after the entry.
        """
        timings = entry.note.timings
        return replace(
            self,
            head_id=entry.id,
            pending=open_calls if entry.note.ended == "suspended" else (),
            input_tokens=self.input_tokens + (timings.input_tokens if timings else 0),
            output_tokens=self.output_tokens + (timings.output_tokens if timings else 0),
            cost=self.cost + (entry.note.cost or 0.0),
        )


def following_of(entry_id: str, links: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return the ids of this entry and of all that follow it. `links` are ids and their parents' ids, in order."""
    found = dict[str, None]()
    for id_, parent in links:
        if id_ == entry_id or parent in found:
            found[id_] = None
    return [*found]


KEPT_FOLLOWS = "An entry that stays, or the head of the conversation, would follow an entry that is removed."


def versions_of(conversations: Iterable[Conversation]) -> set[tuple[str, str, int, float | None]]:
    """Return the owner, id, revision and end of each conversation. They differ after a save, and after a new expiry."""
    ends = (
        (conversation, conversation.expires_at.timestamp() if conversation.expires_at else None)
        for conversation in conversations
    )
    return {(conversation.owner, conversation.id, conversation.revision, end) for conversation, end in ends}


NO_LINK = _("There is no such link.")
USED_DIGEST = "A link with this digest is stored already, and links are never overwritten."
TOKEN_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link to one conversation of `owner`. `digest` is that of its token.

    `head_id` is the last entry that its readers see, None if they see the newest one at any time. `system_prompt` is
    the one that they see, None for none: a conversation does not store it. With `with_files`, they see the attachments.
    `expires_at` is None for a link that does not expire.
    """

    digest: str
    conversation_id: str
    owner: str
    created_at: datetime = field(default_factory=now)
    expires_at: datetime | None = None
    head_id: str | None = None
    system_prompt: str | None = None
    with_files: bool = False

    def is_live(self, at: datetime) -> bool:
        """Return True if the link has not expired then."""
        return self.expires_at is None or self.expires_at.timestamp() > at.timestamp()


_LINK = TypeAdapter(Link)


def new_token() -> str:
    """Return a token of 192 random bits, in letters, digits, "-" and "_"."""
    return token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> str:
    """Return the digest of a token. Tokens are random, so it needs no salt and no slow hash."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def dump_link(link: Link) -> str:
    """Return the link as JSON. Raises `HistoryError` for text that no store can keep."""
    try:
        return _LINK.dump_json(link).decode()
    except PydanticSerializationError as error:  # half of a surrogate pair
        raise HistoryError("The link was not saved: it has text that is not valid Unicode.") from error


def load_link(text: str) -> Link:
    """Return the link of this JSON. Raises `HistoryError` if it is damaged."""
    try:
        return _LINK.validate_json(text)
    except ValidationError as error:
        raise HistoryError("A stored link is damaged.") from error


def too_many(most: int) -> Limited:
    """Return the error for a conversation that has `most` links already."""
    return Limited(_("A chat can have at most {most} links. Revoke one of them first.", most=most))


def live_links(links: Iterable[Link], at: datetime) -> list[Link]:
    """Return the links that have not expired then, the oldest first."""
    return sorted((link for link in links if link.is_live(at)), key=lambda link: (link.created_at, link.digest))


LEASE_SECONDS = 8.0
"""Seconds after its renewal for which a run cannot be lost."""
RENEWED_SECONDS = 4.0
"""A lease that ends later than so many seconds from now is renewed by nothing but events."""
WATCHED_SECONDS = 12.0
"""Seconds for which a run counts as watched after a page has looked at it."""

NO_RUN = _("There is no such answer.")
RUN_CONFLICT = _("This answer is being written elsewhere, or has ended.")


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event. `number` counts the events of the run from 1, without gaps.

    `json` is a JSON object on one line. It is made once, and every store and reader gets this text.
    """

    number: int
    json: str

    @classmethod
    def of(cls, number: int, value: Mapping[str, Any]) -> "RunEvent":
        """Return the event with this JSON object."""
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair in the arguments of a tool call
            text = json.dumps(value, separators=(",", ":"), default=str)
        return cls(number, text)

    @property
    def value(self) -> dict[str, Any]:
        """The JSON object."""
        return json.loads(self.json)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvents:
    """Consecutive events of one run in a conversation, at least one. `has_ended` is True if the last one is the end.

    `of_lost`: they are not the writer's, but end a run whose lease has expired.
    """

    run_id: str
    conversation_id: str
    owner: str
    events: Sequence[RunEvent]
    has_ended: bool = False
    of_lost: bool = False

    @property
    def first(self) -> int:
        """The number of the first event."""
        return self.events[0].number

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self.events[-1].number


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRun:
    """A run without an end in the store. The entries contain what its events up to `saved` say.

    Its writer renews the lease, which ends at `leased_until` by the clock of the store, 0 if it was released. `is_lost`
    is True if that has passed. A visitor wants it to stop if `is_stopped`, and watches it if `is_watched`.
    """

    run_id: str
    conversation_id: str
    owner: str
    saved: int
    leased_until: float
    is_lost: bool
    is_stopped: bool
    is_watched: bool


def join_events(events: Sequence[RunEvent]) -> str:
    """Return the events as one text, a line each."""
    return "\n".join(event.json for event in events)


def split_events(text: str, first: int) -> list[RunEvent]:
    """Return the events of such a text. `first` is the number of the first one."""
    return [RunEvent(number, line) for number, line in enumerate(text.split("\n"), first)]
