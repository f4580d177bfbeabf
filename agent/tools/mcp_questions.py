"""Questions of an MCP server during a call: to people, who answer when the run is resumed, and to the model.

A run does not hold a call open while it waits for people, perhaps for days and in another process. The server is told
that the answer comes later, the run is suspended, and the resumed run makes the call again and answers at once.
"""

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import date, datetime
from hashlib import sha256
from math import inf
from typing import Any, cast
from urllib.parse import urlsplit

from agent.errors import ToolError
from agent.tools.function_tools import Caller, Question

YES, NO, DONE = "Yes", "No", "Done"
_LATER = "The answer comes later, when this call is made again."
_NEVER_COMPARED = ("_meta", "elicitationId", "task")
"""Fields of a request that differ each time."""


class Exchange:
    """The questions of one call, and their answers: those that an earlier call of this run has kept, and new ones.

    `questions` are those that nobody has answered. `arguments` are those of the call that asked first.
    """

    def __init__(self, server: str, caller: Caller | None, arguments: Mapping[str, Any]) -> None:
        kept = (caller.kept if caller else None) or {}
        self.arguments: Mapping[str, Any] = kept.get("arguments", arguments)
        self.questions: list[Question] = []
        self._server, self._caller = server, caller
        replies = caller.replies.items() if caller else ()
        given = {key: {"changed": dict(one)} if isinstance(one, Mapping) else one for key, one in replies}
        self._answers: dict[str, Any] = {**kept.get("answers", {}), **given}
        self._times: dict[str, int] = {}

    def suspend(self) -> None:
        """Suspend the run until the questions are answered."""
        if self._caller is not None:
            self._caller.ask(self.questions, {"arguments": dict(self.arguments), "answers": self._answers})

    async def tell_progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._caller is not None:
            self._caller.tell_progress(progress, total, message or "")

    async def elicit(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return what people have answered to a form or a link. Raises `ToolError` if nobody has answered yet."""
        key, message = self._key(asked), str(asked["message"])
        schema: Mapping[str, Any] = asked.get("requestedSchema") or {}
        fields: Mapping[str, Any] = schema.get("properties") or {}
        if asked.get("mode") == "url":
            answer = self._answer(Question(key=key, text=f"{message} {asked['url']}", choices=(DONE,)))
        elif not fields:
            answer = self._answer(Question(key=key, text=message, choices=(YES, NO)))
        else:
            return self._form(key, message, fields, schema.get("required") or ())
        if self.questions:
            raise ToolError(_LATER)
        return {"action": "decline" if answer in (False, NO) else "accept", **({"content": {}} if schema else {})}

    async def sample(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's answer, if people allow the request. Raises `ToolError` if they do not, or not yet."""
        key = self._key(asked)
        told = "\n\n".join(f"{one['role']}: {_text_of(one['content'])}" for one in asked["messages"])
        system = str(asked.get("systemPrompt") or "")
        wanted: dict[str, Any] = {"instructions": system, "text": told, "max_tokens": asked["maxTokens"]}
        text = f"The MCP server {self._server} wants to ask the model. May it?"
        question = Question(key=key, text=text, arguments=wanted)
        answer = self._answer(question)
        if (changed := _changed(answer)) is not None:
            wanted, answer = {**wanted, **changed}, True
            if not _is_request(wanted):
                del self._answers[key]
                again = f"{text} It takes the texts instructions and text, and max_tokens, not other arguments."
                answer = self._answer(replace(question, text=again))
        if answer is None:
            raise ToolError(_LATER)
        if answer is False:
            raise ToolError("The user refused this request.")
        if answer is True:
            assert self._caller is not None
            written = await self._caller.write(wanted["instructions"], wanted["text"], wanted["max_tokens"])
            answer = self._answers[key] = {"text": written}
        content = {"type": "text", "text": answer["text"]}
        return {"role": "assistant", "content": content, "model": "the model of this run", "stopReason": "endTurn"}

    def _form(self, key: str, message: str, fields: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
        """Return the answers to the fields of a form, each of which is a question."""
        content: dict[str, Any] = {}
        unfit: list[Question] = []
        is_declined = False
        for name, schema in fields.items():
            known = schema.get("description") or schema.get("title") or name
            text = message if len(fields) == 1 and known == name else f"{message} ({known})"
            question = Question(key=f"{key}.{name}", text=text, choices=_choices(schema))
            answer = self._answer(question)
            if answer is False:
                is_declined = is_declined or name in required
            elif answer is not None:
                try:
                    content[name] = _value(schema, str(answer))
                except ValueError as wrong:
                    unfit.append(replace(question, text=f"{text} {wrong}, not {str(answer)[:100]!r}."))
        if is_declined:
            return {"action": "decline"}
        for again in unfit:
            del self._answers[again.key]
            self._answer(again)
        if self.questions:
            raise ToolError(_LATER)
        return {"action": "accept", "content": content} if content else {"action": "decline"}

    def _answer(self, question: Question) -> Any:
        """Return the answer to a question, or None, and note the question."""
        if self._caller is None:
            raise ToolError("Nobody can be asked here: call this tool in a run.")
        if question.key not in self._answers:
            self.questions.append(question)
        return self._answers.get(question.key)

    def _key(self, asked: Mapping[str, Any]) -> str:
        """Return the same key for a request when the call is made again."""
        same = {name: value for name, value in asked.items() if name not in _NEVER_COMPARED}
        digest = sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]
        self._times[digest] = self._times.get(digest, 0) + 1
        return f"{digest}-{self._times[digest]}"


_EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


class OpenExchanges:
    """The calls of one session that are in progress. Older servers do not say during which call they ask."""

    def __init__(self) -> None:
        self._open: list[Exchange] = []

    @contextmanager
    def during(self, exchange: Exchange) -> Generator[None]:
        """Let the server ask this exchange until the call has ended."""
        token = _EXCHANGE.set(exchange)
        self._open.append(exchange)
        try:
            yield
        finally:
            self._open.remove(exchange)
            _EXCHANGE.reset(token)

    async def elicit(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return await self._current().elicit(asked)

    async def sample(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return await self._current().sample(asked)

    def _current(self) -> Exchange:
        own = _EXCHANGE.get()
        if own is not None and own in self._open:
            return own
        if len(self._open) == 1:
            return self._open[0]
        raise ToolError("Nobody can be asked while several calls are made at once: make this call alone.")


def _choices(schema: Mapping[str, Any]) -> tuple[str, ...]:
    if schema.get("type") == "boolean":
        return (YES, NO)
    return tuple(_named(schema.get("items") or {} if schema.get("type") == "array" else schema))


def _named(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the schema allows, by what people read."""
    if titled := schema.get("oneOf") or schema.get("anyOf"):
        return {str(one.get("title", one["const"])): one["const"] for one in titled if "const" in one}
    values = schema.get("enum") or ()
    return dict(zip(map(str, schema.get("enumNames") or values), values, strict=False))


def _value(schema: Mapping[str, Any], answer: str) -> Any:
    """Return what people wrote as a value of the schema. Raises `ValueError` with what is wanted."""
    text, names = answer.strip(), _named(schema)
    match schema.get("type"):
        case "boolean":
            if text.lower() in ("yes", "true", "no", "false"):
                return text.lower() in ("yes", "true")
            raise ValueError("It takes Yes or No")
        case "integer" | "number" as kind:
            low, high = schema.get("minimum", -inf), schema.get("maximum", inf)
            with suppress(ValueError):
                number = int(text) if kind == "integer" else float(text)
                if low <= number <= high and -inf < number < inf:
                    return number
            limits = f"{f' from {low}' if low != -inf else ''}{f' up to {high}' if high != inf else ''}"
            raise ValueError(f"It takes a {'whole ' if kind == 'integer' else ''}number{limits}")
        case "array":
            items = {**schema.get("items", {}), "type": ""}
            values = [_value(items, one.strip()) for one in text.split(",") if one.strip()]
            _check_length(len(values), schema.get("minItems", 0), schema.get("maxItems", inf), "values with commas")
            return values
        case _ if names:
            if text in names or text in names.values():
                return names.get(text, text)
            raise ValueError(f"It takes one of {', '.join(names)}")
        case _:
            _check_length(len(answer), schema.get("minLength", 0), schema.get("maxLength", inf), "characters")
            fits, wanted = _FORMATS.get(schema.get("format", ""), (None, ""))
            if fits is not None and not fits(text):
                raise ValueError(f"It takes {wanted}")
            return answer if fits is None else text


def _check_length(length: int, least: float, most: float, unit: str) -> None:
    """Raise `ValueError` with the limits if a text or a list is too short or too long."""
    if not least <= length <= most:
        limits = filter(None, [f"at least {least}" if least else "", f"at most {most}" if most != inf else ""])
        raise ValueError(f"It takes {' and '.join(limits)} {unit}")


def _is_date(text: str) -> bool:
    with suppress(ValueError):
        return len(text) == 10 and bool(date.fromisoformat(text))
    return False


def _is_time(text: str) -> bool:
    with suppress(ValueError):
        return "T" in text.upper() and datetime.fromisoformat(text).tzinfo is not None
    return False


def _is_url(text: str) -> bool:
    with suppress(ValueError):
        return bool((parts := urlsplit(text)).scheme and (parts.netloc or parts.path)) and not set(text) & set(" \n<>")
    return False


_FORMATS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "email": (
        lambda text: bool(re.fullmatch(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+", text)),
        "an address such as ann@example.org",
    ),
    "uri": (_is_url, "a URL such as https://example.org"),
    "date": (_is_date, "a date such as 2026-11-30"),
    "date-time": (_is_time, "a date and time with its zone such as 2026-11-30T18:30:00Z"),
}
"""The check of each text format, and the words that tell people what it takes."""


def _changed(answer: Any) -> Mapping[str, Any] | None:
    """Return the arguments that people have changed for an approval, None for any other answer."""
    return cast("dict[str, Any]", answer).get("changed") if isinstance(answer, dict) else None


def _is_request(arguments: Mapping[str, Any]) -> bool:
    """Return True if these are the arguments of a request to the model."""
    match arguments:
        case {"instructions": str(), "text": str(text), "max_tokens": int(most)}:
            return len(arguments) == 3 and bool(text.strip()) and most > 0
        case _:
            return False


def _text_of(content: Any) -> str:
    """Return the text of a message that a server wants to send to the model."""
    blocks = cast(list[Any], content) if isinstance(content, list) else [content]
    return "\n".join(one["text"] if one.get("type") == "text" else f"({one.get('type')})" for one in blocks)
