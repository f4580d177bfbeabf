"""Questions of a suspended answer, and the meaning of replies: pure functions of the calls without a result."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from agent.errors import InputError
from agent.i18n import _
from agent.i18n.translator import ENGLISH, LANGUAGES, Translator
from agent.suspension import Answer, Approve, Refuse
from agent.tools import ask_user

Call = Mapping[str, Any]
"""`{id, name, arguments}`, as in a `tool_call` response."""

ASK_USER = ask_user.name
MESSAGE_GONE = _("That message is no longer in this chat. The page is up to date now.")
ALLOW, REFUSE = _("Allow"), _("Refuse")


class QuestionId(NamedTuple):
    """The id of a question: the run that asks it and the call that waits."""

    run: str
    call: str


def is_question(call: Call) -> bool:
    """Return True if the model asks a question, False if it waits for permission to call a tool."""
    return call["name"] == ASK_USER


def question(call: Call) -> str:
    """Return the question that the model asks."""
    return str(call["arguments"].get("question") or "")


def options(call: Call, run: str = "", translator: Translator = ENGLISH) -> list[dict[str, Any]]:
    """Return the buttons under the question: the model's proposed answers, or "allow" and "refuse".

    The value of each button names the question, because a page can still show a question that was answered elsewhere.
    """
    if is_question(call):
        choices: Sequence[Any] = call["arguments"].get("choices") or []
        answers = {str(choice): str(choice) for choice in choices}
    else:
        answers = {translator(ALLOW): ALLOW, translator(REFUSE): REFUSE}
    about = {"do": "answer", "run": run, "call": call["id"]}
    return [{"label": label, "value": {**about, "text": text}} for label, text in answers.items()]


def parse_answer(call: Call, text: str) -> Answer:
    """Return the pressed or written text as an answer to the call. Raises `InputError` with a message."""
    text = text.strip()
    if not text:
        raise InputError(_("Write an answer first."))
    if is_question(call):
        return text
    word = text.casefold()
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
