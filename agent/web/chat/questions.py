"""Questions of a suspended answer: their buttons, the meaning of a reply, and the replies given so far."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from agent.errors import InputError, NotFound, SuspensionError
from agent.history import Conversation, HistoryStore, Note
from agent.i18n.text import _
from agent.i18n.translator import ENGLISH, LANGUAGES, Translator
from agent.suspension.seals import unpack
from agent.suspension.suspended_run import Answer, Approve, Refuse, Suspension
from agent.tools.function_tools import ask_user
from agent.web.chat.attachments import check_length

Call = Mapping[str, Any]
"""`{id, name, arguments}`, as in a `tool_call` response.

A question below a call, of its agent or MCP server, also has `by`, the name of that tool, and perhaps a `question`.
"""

ASK_USER = ask_user.name
MESSAGE_GONE = _("That message is no longer in this chat. The page is up to date now.")
ALLOW, REFUSE = _("Allow"), _("Refuse")


class QuestionId(NamedTuple):
    """The id of a question: the run that asks it and the call that waits."""

    run: str
    call: str


def kept_suspension(packed: str) -> str:
    """Return what the page stores of a suspended run: what its agents and servers ask. It asks the rest in its own way.

    `packed` is what `agent.suspension.seals.pack` wrote, or "".
    """
    below = unpack(packed, ()) if packed else None
    return packed if below is not None and (below.children or below.handed) else ""


def suspended_below(note: Note | None) -> Suspension | None:
    """Return the stored part of a suspended run, without its messages. None if there is none that can be read."""
    try:
        return unpack(note.suspension, ()) if note is not None and note.suspension else None
    except SuspensionError:  # of another version
        return None


def with_below(suspension: Suspension, note: Note | None) -> Suspension:
    """Return the suspended run with what its agents and servers ask, as the note of its last message has it."""
    below = suspended_below(note)
    if below is None:
        return suspension
    return replace(suspension, pending=below.pending, children=below.children, handed=below.handed)


def open_questions(calls: Sequence[Call], note: Note | None) -> Iterator[Call]:
    """Yield what a suspended run waits for: its `calls`, or what is asked below them, in the order of the calls."""
    below = suspended_below(note)
    for call in calls:
        if below is None or call["id"] not in below.children:
            yield call
            continue
        for one in below.pending:
            if one.agent and one.call_id.startswith(f"{call['id']}/"):
                made = {"id": one.call_id, "by": one.agent.replace("/", " · ")}
                if one.kind == "approval":
                    yield {**made, "name": one.name, "arguments": one.arguments, "question": one.question}
                else:
                    yield {**made, "name": ASK_USER, "arguments": {"question": one.question, "choices": [*one.choices]}}


def is_question(call: Call) -> bool:
    """Return True if the model asks a question, False if it waits for permission to call a tool."""
    return call["name"] == ASK_USER


def question(call: Call) -> str:
    """Return the question that the model asks."""
    return str(call.get("question") or call["arguments"].get("question") or "")


def options(call: Call, run: str = "", translator: Translator = ENGLISH) -> list[dict[str, Any]]:
    """Return the buttons under the question: the model's proposed answers, or "allow" and "refuse".

    The value of each button names the question, because a page can still show a question that was answered elsewhere.
    """
    if is_question(call):
        choices: Sequence[Any] = call["arguments"].get("choices") or []
        answers = {str(choice): str(choice) for choice in choices}
        if "by" in call:
            answers.setdefault(translator(REFUSE), REFUSE)
    else:
        answers = {translator(ALLOW): ALLOW, translator(REFUSE): REFUSE}
    about = {"do": "answer", "run": run, "call": call["id"]}
    return [{"label": label, "value": {**about, "text": text}} for label, text in answers.items()]


def parse_answer(call: Call, text: str) -> Answer:
    """Return the pressed or written text as an answer to the call. Raises `InputError` with a message."""
    text = text.strip()
    if not text:
        raise InputError(_("Write an answer first."))
    word = text.casefold()
    if is_question(call):
        is_refused = "by" in call and word in _REFUSE and text not in map(str, call["arguments"].get("choices") or ())
        return Refuse() if is_refused else text
    if word in _ALLOW:
        return Approve()
    if word in _REFUSE:
        return Refuse()
    return Approve(_arguments(text)) if text.startswith("{") else Refuse(text)


_ALLOW, _REFUSE = ({Translator(language)(word).casefold() for language in LANGUAGES} for word in (ALLOW, REFUSE))
"""The words that people can type instead of pressing a button, in every language."""


def _arguments(text: str) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(_("These arguments are not JSON: {error}.", error=str(error))) from error


MAX_BYTES = 20_000_000
"""Bytes of all replies. Beyond this, the conversation with the longest replies is asked again."""
ENTRY_BYTES = 500
"""Bytes that a conversation or a reply needs besides its text."""


class Replies:
    """The replies by conversation and question. A restart forgets them, and the questions are asked again.

    A question is known by its run, too: another run of the conversation can have calls with the same ids.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._replies: dict[str, tuple[str, Mapping[QuestionId, str], int]] = {}
        """By conversation: its owner, the replies by question, and their size in bytes."""

    def get(self, conversation_id: str | None) -> Mapping[QuestionId, str] | None:
        """Return the replies so far, or None if there are none."""
        found = self._replies.get(conversation_id or "")
        return found[1] if found else None

    def put(self, conversation: Conversation, replies: Mapping[QuestionId, str]) -> None:
        """Store the replies of a conversation.

        Raises `InputError` if they are too long together, and keeps the old ones.
        """
        check_length(*replies.values())
        self._replies.pop(conversation.id, None)
        excess = self.size + _size(replies) - self._max_bytes
        if excess > 0:  # longest first, not oldest: a few long replies would push out everybody's short ones
            for conversation_id in sorted(self._replies, key=lambda one: self._replies[one][2], reverse=True):
                excess -= self._replies.pop(conversation_id)[2]
                if excess <= 0:
                    break
        self._replies[conversation.id] = conversation.owner, replies, _size(replies)

    @property
    def size(self) -> int:
        """The number of bytes of all replies."""
        return sum(size for _, _, size in self._replies.values())

    def forget(self, conversation_id: str) -> None:
        """Forget the replies of this conversation."""
        self._replies.pop(conversation_id, None)

    async def forget_deleted(self, store: HistoryStore) -> None:
        """Forget the replies of conversations that are no longer stored."""
        for conversation, (owner, *_rest) in list(self._replies.items()):
            try:
                await store.get(conversation, owner=owner)
            except NotFound:
                self.forget(conversation)


def _size(replies: Mapping[QuestionId, str]) -> int:
    return ENTRY_BYTES + sum(
        ENTRY_BYTES + sum(map(sys.getsizeof, (*question, text))) for question, text in replies.items()
    )
