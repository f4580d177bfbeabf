"""What a suspended answer asks of people, and what their words mean: pure, from the calls that have no result."""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError

from agent.errors import Conflict, InputError
from agent.i18n.translator import ENGLISH, Translator, page_error, table
from agent.suspension import Answer, Approve, Refuse
from agent.tools import ask_user

Call = Mapping[str, Any]
"""`{id, name, arguments}`, as a `tool_call` response has it."""

ASK_USER = ask_user.name
ALLOW, REFUSE = "Allow", "Refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class PressedButton:
    """What a button under the last answer asks for, as its value says it.

    "answer" gives `text` to the call of that run; "retry" and "continue" are about the visitor's message `entry`.
    """

    do: Literal["answer", "retry", "continue"]
    entry: str = ""
    run: str = ""
    call: str = ""
    text: str = ""

    @classmethod
    def of(cls, value: object) -> "PressedButton":
        """The value that the browser sent, checked. Raises `Conflict`."""
        try:
            return _PRESSED.validate_python(value)
        except ValidationError as error:
            raise page_error(Conflict, "message_gone") from error


_PRESSED = TypeAdapter(PressedButton)


class QuestionId(NamedTuple):
    """A question by its names: the run that asks it and the call that waits."""

    run: str
    call: str


def is_question(call: Call) -> bool:
    """Whether the model asks something; else it waits for leave to call a tool."""
    return call["name"] == ASK_USER


def question(call: Call) -> str:
    """The question that the model asks."""
    return str(call["arguments"].get("question") or "")


def options(call: Call, run: str = "", words: Translator = ENGLISH) -> list[dict[str, Any]]:
    """The buttons under the question: the answers that the model proposes, or leave and refusal.

    The value of each names the question, because a page may still show one that was answered elsewhere.
    """
    if is_question(call):
        choices: Sequence[Any] = call["arguments"].get("choices") or []
        answers = {str(choice): str(choice) for choice in choices}
    else:
        answers = {words("allow"): ALLOW, words("refuse"): REFUSE}
    about = {"do": "answer", "run": run, "call": call["id"]}
    return [{"label": label, "value": {**about, "text": text}} for label, text in answers.items()]


def render_question(call: Call, words: Translator = ENGLISH) -> str:
    """The bubble that asks, as HTML."""
    if is_question(call):
        hint = words("ask_choose" if options(call) else "ask_write")
        text = f"<p>{html.escape(question(call))}</p>"
    else:
        hint = words("ask_arguments")
        arguments = html.escape(json.dumps(call["arguments"], ensure_ascii=False, indent=2, default=str))
        name = f"<b>{html.escape(str(call['name']))}</b>"
        text = f"<p>{words('ask_leave', name=name)}</p><pre>{arguments}</pre>"
    return f'<div class="asking" role="group">{text}<p class="caption">{hint}</p></div>'


def parse_answer(call: Call, text: str) -> Answer:
    """What was pressed or written, as an answer to the call. Raises `InputError` with a sentence."""
    text = text.strip()
    if not text:
        raise page_error(InputError, "answer_first")
    if is_question(call):
        return text
    word = text.casefold()
    if word in map(str.casefold, table("say")["allow"].values()):
        return Approve()
    if word in map(str.casefold, table("say")["refuse"].values()):
        return Refuse()
    return Approve(_arguments(text)) if text.startswith("{") else Refuse(text)


def _arguments(text: str) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads(text))
    except ValueError as error:
        raise page_error(InputError, "not_json", error=str(error)) from error
