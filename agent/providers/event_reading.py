"""Reads the events of servers with OpenAI's APIs before the SDK makes objects of them, also if they break the rules.

Servers send events without data, fields of other types, errors in many places, or a whole JSON answer. What can be read
becomes an event of the types that the SDK expects. A failure keeps the server's own words.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final, cast

import httpx2

from agent.providers.delta_merging import EVENT
from agent.providers.errors import NoModelServer, UnreadableAnswer, words_of

_Table = dict[str, Any]
_JSON: Final = json.JSONDecoder(strict=False)
_GAP = re.compile(r"\s*(?:data:\s*)?")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"id", b"retry")
_MANY = 8_000
"""Bytes of lines without a field, up to which each line can be the last one of their JSON."""
_TERMINAL = ("response.completed", "response.failed", "response.incomplete")


class SdkEvent:
    """An event as the SDKs take it, already parsed. After an error they read no more."""

    event: str | None = None
    data = ""

    def __init__(self, value: dict[str, Any], *, is_error: bool = False) -> None:
        self._value, self.is_error = value, is_error

    def json(self) -> Any:
        """Return the value."""
        return self._value


class _Done(SdkEvent):
    data = "[DONE]"


class EventReader:
    """Reads one answer. Raises `UnreadableAnswer` and `NoModelServer`; the SDK raises the errors that a server sends.

    After a finish reason the answer ends when nothing more of it has come for `end_seconds`, and no failure counts.
    """

    def __init__(self, end_seconds: float) -> None:
        self._end_seconds = end_seconds
        self._ends_at: float | None = None
        self._rest: list[bytes] = []
        """The pieces of a line that has not ended."""
        self._skips_newline = False
        self._name = b""
        self._lines: list[bytes] = []
        self._raw: list[bytes] = []
        """Lines without a field: JSON or a page in place of events."""
        self._raw_size = self._next_try = 0
        self._words = ""
        """What the server sent as text in place of a chunk."""
        self._choice: int | None = None
        """The number of the choice that is read. A server can send several."""
        self._told = set[str | int]()
        """The numbers and ids of the items of which texts have come."""
        self._items: list[tuple[object, str]] = []
        """The place and the id of each item that has begun without an id. Its events may name neither."""
        self._unnamed = 0
        self._has_items = False
        self._has_read = self._has_other = self._has_deltas = self._is_done = False

    async def aiter_bytes(self, iterator: AsyncIterator[bytes]) -> AsyncGenerator[SdkEvent]:
        """Yield the events of an answer. Nothing of it is left open after an error, which asyncio would report."""
        async with aclosing(cast(AsyncGenerator[bytes], iterator)) as chunks:
            has_more = True
            while has_more and not self._is_done:
                try:
                    if self._ends_at is None:
                        chunk = await anext(chunks)
                    else:
                        async with asyncio.timeout_at(self._ends_at):
                            chunk = await anext(chunks)
                    events = self._feed(chunk)
                except StopAsyncIteration:
                    events, has_more = self._end(), False
                except (TimeoutError, httpx2.HTTPError, httpx2.StreamError):
                    if self._ends_at is None:
                        raise
                    return
                for event in events:
                    if event.is_error:
                        await chunks.aclose()
                    yield event

    def _feed(self, chunk: bytes) -> Iterator[SdkEvent]:
        if self._skips_newline and chunk:
            chunk = chunk.removeprefix(b"\n")
        self._skips_newline = chunk.endswith(b"\r")
        if self._rest:
            self._rest.append(chunk)
            if not _LINE_END.search(chunk):
                return
            chunk = b"".join(self._rest)
            self._rest.clear()
        at = 0
        while at < len(chunk):
            if not (self._lines or self._name) and (found := EVENT.match(chunk, at)):
                at = found.end()
                if self._ends_at is None and _is_plain(value := _parsed(found[2])) and found[1].startswith(b"data"):
                    self._has_read = self._has_deltas = True  # as `_read`, but quickly, because most events are so
                    self._choice = 0
                    yield SdkEvent(cast(_Table, value))
                    continue
                self._name = found[1].partition(b"event:")[2].partition(b"\n")[0].strip()
                self._lines.append(found[2])
                yield from self._dispatch()
            elif end := _LINE_END.search(chunk, at):
                yield from self._line(chunk[at : end.start()])
                at = end.end()
            else:
                self._rest.append(chunk[at:])
                return

    def _line(self, line: bytes) -> Iterator[SdkEvent]:
        line = line.removeprefix(_BOM)
        name, colon, value = line.partition(b":")
        name = name.strip().lower()
        if not line:
            yield from self._dispatch()
        elif name in _FIELDS and (colon or name == b"data"):
            value = value.removeprefix(b" ")
            if name == b"data":
                begins = len(self._lines) == 1 and value.startswith((b"{", b"[DONE]"))
                if begins and _parsed(self._lines[0]) is not _NO_JSON:
                    yield from self._dispatch()  # no empty line was between two events
                self._lines.append(value)
            elif name == b"event":
                self._name = value.strip()
        elif colon and name == b"error":
            yield from self._fail(_parsed(value), value)
        elif name or not colon:  # no comment
            if len(self._lines) == 1 and _parsed(self._lines[0]) is not _NO_JSON:
                yield from self._dispatch()
            if self._lines:  # the JSON of the event goes on
                self._lines.append(line)
                return
            self._raw.append(line)
            self._raw_size += len(line)
            yield from self._read_raw()

    def _dispatch(self) -> Iterator[SdkEvent]:
        """Yield what the lines of an event say."""
        name, lines = self._name, self._lines
        self._name, self._lines = b"", []
        if not lines or self._is_done:
            return
        data = lines[0] if len(lines) == 1 else b"\n".join(lines)
        if data.startswith(b"data:"):  # a proxy has made events of events
            data = data.removeprefix(b"data:")
        if data.strip().startswith(b"[DONE]"):
            yield from self._check_end()
            self._is_done = True
            yield _Done({})  # the SDK reads on, so that the connection can be used again
            return
        value = _parsed(data)
        if name and isinstance(value, dict):
            value = {"type": name.decode(errors="replace"), **cast(_Table, value)}
        if name.lower() == b"error" or value is _NO_JSON or isinstance(value, str):
            yield from self._fail(value, data, is_error=name.lower() == b"error")
        else:
            yield from self._read(value)

    def _read_raw(self, *, is_end: bool = False) -> Iterator[SdkEvent]:
        """Yield what the lines without a field say, if they are whole."""
        if not self._raw:
            return
        if not is_end and (self._raw_size < self._next_try or not self._raw[-1].rstrip().endswith((b"}", b"]"))):
            return
        if self._raw_size > _MANY:
            self._next_try = 2 * self._raw_size  # all tries together take linear time
        if (value := _parsed(b"\n".join(self._raw))) is not _NO_JSON:
            self._raw.clear()
            self._raw_size = self._next_try = 0
            yield from self._read(value, is_whole=True)

    def _read(self, value: object, *, is_whole: bool = False) -> Iterator[SdkEvent]:
        """Yield the events of a parsed value. Numbers and the like say nothing."""
        for item in cast(list[object], value) if isinstance(value, list) else [value]:
            event = _as_dict(item)
            if _is_plain(event):
                self._has_read = self._has_deltas = True
                if self._ends_at is not None:
                    self._note_end()
                yield SdkEvent(event)
            elif (error := _error_of(event)) is not None:
                yield from self._fail(error, b"", is_error=True)
            elif event.get("object") == "response":
                for one in _response_events(event):
                    yield from self._read_response(one)
            elif str(event.get("type")).startswith("response."):
                yield from self._read_response(event)
            elif chunk := _clean_chunk(event, is_whole=is_whole, has_deltas=self._has_deltas):
                yield from self._read_chunk(chunk)
            elif event:
                self._has_other = True

    def _read_chunk(self, chunk: dict[str, Any]) -> Iterator[SdkEvent]:
        choices: Sequence[dict[str, Any]] = chunk["choices"]
        self._has_read = True
        if choices:
            index = choices[0]["index"]
            has_delta = any(choices[0]["delta"].get(name) for name in ("content", "reasoning", "tool_calls"))
            if has_delta and self._choice is None:
                self._choice = index
            if index not in (self._choice, None):
                choices[0]["delta"], has_delta = {}, False
            choices[0]["index"] = 0
            self._has_deltas = self._has_deltas or has_delta
            if choices[0].get("finish_reason") or (self._ends_at is not None and has_delta):
                self._note_end()
        yield SdkEvent(chunk)

    def _read_response(self, event: dict[str, Any]) -> Iterator[SdkEvent]:
        if self._ends_at is not None:
            return
        event = self._with_item_id(event)
        for missing in self._missing_texts(event):
            if (cleaned := _clean_response_event(missing)) is not None:
                yield SdkEvent(cleaned)
        if (cleaned := _clean_response_event(event)) is None:
            return
        self._has_read = True
        if event["type"] in _TERMINAL:
            self._note_end()
        yield SdkEvent(cleaned, is_error=event["type"] == "response.failed")

    def _with_item_id(self, event: _Table) -> _Table:
        """Give an item without an id one of its own, and let its later events name it."""
        kind, place, item = event["type"], event.get("output_index"), _as_dict(event.get("item"))
        if not item:
            has_id = not kind.endswith((".delta", ".done")) or isinstance(event.get("item_id"), str)
            id_ = "" if has_id else self._item_at(place)
            return {**event, "item_id": id_} if id_ else event
        if any(isinstance(item.get(name), str) and item[name] for name in ("id", "call_id")):
            return event
        id_ = self._item_at(place) if kind.endswith(".done") else ""
        if not id_:
            self._unnamed += 1
            id_ = f"{item.get('type')}_{self._unnamed}"
            self._items.append((place, id_))
        if kind.endswith(".done") and place is None:
            self._items.remove((place, id_))
        return {**event, "item": {**item, "id": id_}}

    def _item_at(self, place: object) -> str:
        return next((id_ for at, id_ in reversed(self._items) if at == place), "")

    def _missing_texts(self, event: _Table) -> Iterator[_Table]:
        """Yield the deltas of texts that come only with the end of a part, an item or the answer."""
        kind, item = event["type"], _as_dict(event.get("item"))
        found = (event.get("output_index"), event.get("item_id"), item.get("id"))
        names = {one for one in found if isinstance(one, str | int)}
        is_told = bool(names & self._told if names else self._told)
        if kind.endswith("text.delta") or kind == "response.output_item.added":
            self._has_items = True
            self._told |= names if kind.endswith("text.delta") else set()
        elif kind.endswith("text.done") and not is_told:
            self._told |= names
            yield {**event, "type": kind.replace(".done", ".delta"), "delta": event.get("text")}
        elif kind == "response.output_item.done":
            self._has_items = True
            if not is_told:
                yield from _item_deltas(item, event.get("output_index"))
        elif kind == "response.completed" and not self._has_items:
            yield from [*_response_events(_as_dict(event.get("response")))][1:-1]

    def _note_end(self) -> None:
        self._ends_at = asyncio.get_running_loop().time() + self._end_seconds

    def _fail(self, value: object, data: bytes, *, is_error: bool = True) -> Iterator[SdkEvent]:
        """Yield the server's error, which the SDK raises. Text that need not be one is kept for the end."""
        if self._ends_at is not None:
            return
        words = value if isinstance(value, str) else data.decode(errors="replace").strip()
        if value is _NO_JSON and not is_error and words[:1] in ("{", "["):
            raise UnreadableAnswer
        if is_error or words.lower().startswith("error"):
            error = _error_of(_as_dict(value)) or _as_dict(value) or {"message": words}
            self._has_read = True
            yield self._error_event(error)
        else:
            self._words = self._words or words

    def _error_event(self, error: _Table) -> SdkEvent:
        return SdkEvent({"error": error}, is_error=True)

    def _end(self) -> Iterator[SdkEvent]:
        """Yield what the last lines say. Raise if there was no answer."""
        if self._rest:
            rest = b"".join(self._rest)
            self._rest.clear()
            yield from self._line(rest)
        yield from self._dispatch()
        yield from self._read_raw(is_end=True)
        yield from self._check_end()

    def _check_end(self) -> Iterator[SdkEvent]:
        """Raise if the answer has no finish reason, and the server said something that is no part of it."""
        raw = b"\n".join(self._raw).decode(errors="replace").strip()
        if self._ends_at is not None or self._is_done:
            return
        if raw.startswith("<") and not self._has_read:
            raise NoModelServer
        words = self._words or ("" if raw[:1] in ("<", "{", "[") or "\ufffd" in raw else raw)
        if words or raw or (self._has_other and not self._has_read):
            raise UnreadableAnswer(words)
        yield from ()


_NO_JSON: Final = object()


def _parsed(data: bytes) -> object:
    """Return the value of the JSON, or `_NO_JSON`. A character that is not UTF-8 is replaced.

    Objects that follow each other are a list.
    """
    text = data.decode(errors="replace").lstrip("\ufeff")
    try:
        return _JSON.decode(text)
    except RecursionError:
        return _NO_JSON
    except ValueError:
        if not text.lstrip().startswith("{"):
            return _NO_JSON
    found: list[object] = []
    at = len(text) - len(text.lstrip())
    while at < len(text):
        try:
            value, at = _JSON.raw_decode(text, at)
        except (ValueError, RecursionError):
            return _NO_JSON
        found.append(value)
        gap = _GAP.match(text, at)
        at = gap.end() if gap else at
    return found


# --- chunks of Chat Completions ---------------------------------------------------------------------------------------

_THOUGHTS = ("reasoning", "reasoning_content", "thinking", "reasoning_text", "thought", "reasoning_details")
"""Fields of a delta in which servers send reasoning."""
_PLAIN = frozenset(("role", "content", "reasoning", "reasoning_content", "refusal"))
"""Fields of a delta that need no change if they are texts."""
_MOST_TOKENS = 10**12


def _is_plain(value: object) -> bool:
    """Return True for a chunk that needs no change: one choice with texts, and no end. Most chunks are like that."""
    if type(value) is not dict:
        return False
    event = cast(_Table, value)
    choices: Any = event.get("choices")
    if type(choices) is not list or len(cast(list[Any], choices)) != 1 or event.get("usage") or "error" in event:
        return False
    if event.get("modality") == "audio":
        return False
    choice: Any = cast(list[Any], choices)[0]
    if type(choice) is not dict:
        return False
    choice = cast(_Table, choice)
    delta: Any = choice.get("delta")
    if type(delta) is not dict or choice.get("finish_reason") is not None or "error" in choice or "usage" in choice:
        return False
    if not delta or "message" in choice or choice.get("index", 0) != 0:
        return False
    for name, value in cast(_Table, delta).items():
        if value is not None and (type(value) is not str or name not in _PLAIN):
            return False
    return (
        choice.get("logprobs") is event.get("usage") is event.get("moderation") is None
        and type(event.get("id", "")) is type(event.get("model", "")) is str
        and type(event.get("created", 0)) is int
        and type(event.get("service_tier") or "") is str
    )


def _clean_chunk(event: _Table, *, is_whole: bool, has_deltas: bool) -> _Table | None:
    """Return the chunk with fields of the right types; None if it says nothing.

    `is_whole`: it is a whole answer. `has_deltas`: there were deltas, so that a message only repeats them.
    """
    choices = [_clean_choice(one, is_whole=is_whole, has_deltas=has_deltas) for one in _tables(event.get("choices"))]
    holders = (event, *_tables(event.get("choices")), _as_dict(event.get("x_groq")))
    usage = next((found for one in holders if (found := _usage(one.get("usage")))), None)
    if not choices and usage is None:
        return None
    if event.get("modality") == "audio":  # vLLM-Omni sends sound in the place of the text
        for one in choices:
            one["delta"] = {"content": None, "audio": one["delta"].get("content")}
    if is_whole and choices:  # some servers send the text and each call as choices of their own
        parts = [(name, value) for one in reversed(choices) for name, value in one["delta"].items() if value]
        choices[0]["delta"] = {"content": None, **dict(parts)}
    created = event.get("created")
    known = {name: value for name in ("id", "model", "service_tier") if isinstance(value := event.get(name), str)}
    return {
        "id": "",
        "model": "",
        **known,
        "object": "chat.completion.chunk",
        "created": created if isinstance(created, int) and 0 < created < _MOST_TOKENS else 0,
        "choices": choices,
        **({"usage": usage} if usage else {}),
    }


def _clean_choice(choice: _Table, *, is_whole: bool, has_deltas: bool) -> _Table:
    given: Any = choice.get("delta")
    if isinstance(given, str):
        given = {"content": given}
    if not given and not has_deltas:
        said = choice.get("message")
        given = _as_dict(said) or {"content": choice.get("text") if said is None else said}
    delta = _clean_delta(_as_dict(given), is_whole=is_whole)
    finish: Any = choice.get("finish_reason")
    finish = _text_of(finish, ("type", "reason", "finish_reason", "value", "name")) or ("stop" if finish else None)
    if finish is None and is_whole:
        finish = "stop"
    if finish is not None and finish.strip().lower() in ("", "null", "none"):
        finish = None
    index = _count(choice.get("index"))
    return {"index": index, "delta": delta, "finish_reason": finish.strip() if finish else None}


def _clean_delta(delta: _Table, *, is_whole: bool) -> _Table:
    text, thoughts = _split_content(delta.get("content"))
    thoughts = next((said for name in _THOUGHTS if (said := _joined_text(delta.get(name)))), "") + thoughts
    cleaned: _Table = {"content": text or None}
    if thoughts:
        cleaned["reasoning_content" if delta.get("reasoning_content") else "reasoning"] = thoughts
    if isinstance(refusal := delta.get("refusal"), str) and refusal:
        cleaned["refusal"] = refusal
    if pictures := [
        url for one in _pictures(delta) if (url := _text_of(one, ("url", "image_url", "b64_json", "data")))
    ]:
        cleaned["images"] = pictures
    if sound := _as_dict(delta.get("audio")):
        cleaned["content"] = (text + _joined_text(sound.get("transcript"))) or None
        if isinstance(data := sound.get("data"), str) and data:
            cleaned["audio"] = data
    if isinstance(delta.get("annotations"), list):
        cleaned["annotations"] = _tables(delta["annotations"])
    calls = _tables(_read_json(delta.get("tool_calls")))
    if not calls and (old := delta.get("function_call")):
        calls = [{"index": 0, "function": old}]
    if found := [call for place, one in enumerate(calls) if (call := _clean_call(one, place if is_whole else None))]:
        cleaned["tool_calls"] = found
    return cleaned


def _clean_call(call: _Table, place: int | None) -> _Table | None:
    """Return a tool call, or a piece of one; None if it says nothing. `place` is its number in a whole answer."""
    given = call.get("function")
    inner = {**call, "name": given} if isinstance(given, str) else _as_dict(given) or call
    name, id_ = inner.get("name"), call.get("id")
    arguments = next((inner[one] for one in ("arguments", "parameters", "input") if inner.get(one) is not None), None)
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = name if isinstance(name, str) else None
    id_ = str(id_) if isinstance(id_, str | int) and not isinstance(id_, bool) else None
    if not (name or arguments or id_):
        return None
    index = _count(call.get("index"))
    kept = {"extra_content": call["extra_content"]} if isinstance(call.get("extra_content"), dict) else {}
    function = {"name": name, "arguments": arguments}
    return {"index": place if index is None else index, "id": id_, "type": "function", "function": function, **kept}


def _pictures(delta: _Table) -> Iterator[object]:
    """Yield the pictures of a delta, which are in a field of their own or parts of its content."""
    content: Any = delta.get("content")
    parts = cast(list[object], content) if isinstance(content, list) else []
    for one in (*_tables(delta.get("images")), *_tables(parts)):
        if "image" in str(one.get("type", "image")):
            yield one.get("image_url") or one.get("image") or one.get("source") or one


def _split_content(content: object) -> tuple[str, str]:
    """Return the text and the thoughts of a content, which can be a list of parts."""
    text, thoughts = "", ""
    for part in cast(list[object], content) if isinstance(content, list) else [content]:
        kind = str(_as_dict(part).get("type", "text")).lower()
        if "think" in kind or "reason" in kind or "thought" in kind:
            thoughts += _joined_text(part)
        elif "text" in kind or not isinstance(part, dict):
            text += _joined_text(part)
    return text, thoughts


def _joined_text(value: object, depth: int = 5) -> str:
    """Return the text of a value that should be one: a number, a list of parts, or an object with a text."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json.dumps(value)
    if depth and isinstance(value, list):
        return "".join(_joined_text(one, depth - 1) for one in cast(list[object], value))
    if depth and isinstance(value, dict):
        table = _as_dict(cast(object, value))
        found = (table.get(name) for name in ("text", "content", "thinking", "reasoning", "summary", "value"))
        return next((said for one in found if (said := _joined_text(one, depth - 1))), "")
    return ""


def _usage(value: object, depth: int = 1) -> _Table | None:
    """Return the counts of a usage; None if it counts nothing."""
    counts: _Table = {}
    for name, given in _as_dict(_read_json(value)).items():
        if name.endswith("_details"):
            if depth and (inner := _usage(given, depth - 1)):
                counts[name] = inner
        elif (count := _count(given)) is not None:
            counts[name] = count
    for name, other in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")) if depth else ():
        counts.setdefault(name, counts.get(other, 0))
    return counts if any(counts.values()) else None


def _count(value: object) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_TOKENS:
        return None
    return int(value)


# --- events of Responses ----------------------------------------------------------------------------------------------

_ITEMS: Final[dict[str, _Table]] = {
    "message": {"role": "assistant", "content": []},
    "function_call": {"call_id": "", "name": "", "arguments": ""},
    "reasoning": {"summary": []},
    "web_search_call": {"status": "completed"},
}
"""The items that are read, and the fields that each must have."""
_TEXTS = ("delta", "text", "arguments", "item_id", "refusal")
_NUMBERS = ("sequence_number", "output_index", "content_index", "summary_index", "annotation_index")


def _clean_response_event(event: _Table) -> _Table | None:
    """Return the event with fields of the right types; None if it says nothing."""
    kind = event["type"]
    if kind.startswith("response.reasoning_text."):  # the library keeps it, but does not show it
        kind = kind.replace("_text.", "_summary_text.")
        event = {**event, "type": kind, "summary_index": event.get("content_index")}
    if kind.endswith(".delta") and type(event.get("delta")) is str and type(event.get("item_id")) is str:
        return event if all(type(event.get(name, 0)) is int for name in _NUMBERS) else _with_fields(event)
    cleaned = _with_fields(event)
    if kind in ("response.created", "response.in_progress", "response.queued", *_TERMINAL):
        return {**cleaned, "response": _clean_response(event.get("response"), kind.removeprefix("response."))}
    if kind in ("response.output_item.added", "response.output_item.done"):
        item = _clean_item(event.get("item"))
        if item and kind.endswith(".added") and "arguments" in item:
            item["arguments"] = ""  # they come again with the deltas or with the end
        return {**cleaned, "item": item} if item else None
    if kind.endswith(".delta"):
        return cleaned if cleaned["delta"] else None
    if "part" in event:
        part = _as_dict(event["part"])
        return {**cleaned, "part": {**part, "type": str(part.get("type", "")), "text": _joined_text(part.get("text"))}}
    return cleaned


def _with_fields(event: _Table) -> _Table:
    read = _arguments if "arguments" in event["type"] else _joined_text
    texts = {name: read(event.get(name)) for name in _TEXTS}
    numbers = {name: _count(event.get(name)) or 0 for name in _NUMBERS}
    annotation = {"annotation": _as_dict(event["annotation"])} if "annotation" in event else {}
    return {"type": event["type"], "logprobs": [], **texts, **numbers, **annotation}


def _arguments(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else _joined_text(value)


def _clean_response(value: object, kind: str) -> _Table:
    given = _as_dict(value)
    texts = {name: text for name in ("id", "model", "status") if isinstance(text := given.get(name), str)}
    details, error, usage = (
        given.get("incomplete_details"),
        given.get("error"),
        _response_usage(given.get("usage") if f"response.{kind}" in _TERMINAL else None),
    )
    reason = _text_of(details, ("reason",)) or ("max_output_tokens" if kind == "incomplete" and not details else None)
    return {
        **{"id": "", "model": "", "status": "in_progress" if kind in ("created", "queued") else kind, **texts},
        "object": "response",
        "created_at": _count(given.get("created_at")) or 0,
        "output": [item for one in _tables(given.get("output")) if (item := _clean_item(one))],
        "incomplete_details": {"reason": reason} if reason else None,
        "error": _error_table(error) if error else None,
        "usage": usage,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _response_usage(value: object) -> _Table | None:
    if (counts := _usage(value)) is None:
        return None
    for name, other in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        count = counts.pop(other, 0)
        counts.setdefault(name, count)
    return {"total_tokens": 0, "input_tokens_details": {}, "output_tokens_details": {}, **counts}


def _clean_item(value: object) -> _Table | None:
    """Return an item of an answer; None for one of another kind or without an id."""
    item = _as_dict(value)
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in _ITEMS:
        return None
    named = ("id", "call_id", "name", "status", "role", "phase", "namespace", "encrypted_content")
    texts = {name: text for name in named if isinstance(text := item.get(name), str)}
    texts["id"] = texts.get("id") or texts.get("call_id") or kind
    cleaned = {**_ITEMS[kind], "type": kind, **texts}
    if kind == "function_call":
        cleaned |= {"arguments": _arguments(item.get("arguments")), "call_id": texts.get("call_id") or texts["id"]}
    if kind == "web_search_call":
        cleaned["action"] = _search_action(_as_dict(item.get("action")))
    for name in ("content", "summary"):
        if name in _ITEMS[kind]:
            parts = _tables(item.get(name))
            cleaned[name] = [{**one, "text": _joined_text(one), "type": str(one.get("type", ""))} for one in parts]
    return cleaned


def _search_action(action: _Table) -> _Table:
    """Return what a search in the web has done: it has searched, or opened a page."""
    texts = {name: text for name in ("query", "url", "pattern") if isinstance(text := action.get(name), str)}
    kind = "search" if "url" not in texts else "find_in_page" if "pattern" in texts else "open_page"
    given = action.get("queries")
    queries = [one for one in cast(list[object], given) if isinstance(one, str)] if isinstance(given, list) else []
    sources = [
        {"type": "url", "url": one["url"]} for one in _tables(action.get("sources")) if type(one.get("url")) is str
    ]
    lists = {name: found for name, found in (("queries", queries), ("sources", sources)) if found}
    return {"type": kind, "query": "", **texts, **lists}


def _item_deltas(item: _Table, place: object) -> Iterator[_Table]:
    """Yield the deltas that the texts of a whole message or of whole reasoning stand for."""
    kind = {"message": "output_text", "reasoning": "reasoning_summary_text"}.get(str(item.get("type")))
    if kind is None:
        return
    parts: Any = item.get("summary") or item.get("content")
    for number, part in enumerate(cast(list[object], parts) if isinstance(parts, list) else [parts]):
        at = {"item_id": item.get("id"), "output_index": place, "content_index": number, "summary_index": number}
        yield {"type": f"response.{kind}.delta", **at, "delta": _joined_text(part)}


def _response_events(response: _Table) -> Iterator[_Table]:
    """Yield the events that a whole response stands for."""
    yield {"type": "response.created", "response": {**response, "status": "in_progress", "usage": None}}
    for place, item in enumerate(_tables(response.get("output"))):
        item = {**item, "id": item.get("id") or f"item_{place}"}
        yield {"type": "response.output_item.added", "output_index": place, "item": item}
        yield from _item_deltas(item, place)
        yield {"type": "response.output_item.done", "output_index": place, "item": item}
    status = response.get("status")
    kind = status if status in ("failed", "incomplete") else "completed"
    yield {"type": f"response.{kind}", "response": response}


# --- events of Claude -------------------------------------------------------------------------------------------------

_DELTA_TEXTS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
_BLOCKS: Final[dict[str, _Table]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"name": ""},
}
"""The blocks that are read, and the texts that each must have."""
_USAGE = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class _MessagesEvent(SdkEvent):
    """An event as Anthropic's SDK takes it: with a name, and data that are not empty."""

    data = "{}"

    def __init__(self, value: dict[str, Any]) -> None:
        super().__init__(value, is_error=value["type"] == "error")
        self.event = value["type"]


class MessagesReader(EventReader):
    """Reads one answer of a server with Anthropic's API. Blocks are numbered anew, and arguments come only once."""

    def __init__(self, end_seconds: float) -> None:
        super().__init__(end_seconds)
        self._blocks: dict[int, int] = {}
        self._last = -1
        self._input = ""
        """The arguments of the last block, until others come."""
        self._usage: _Table = {"output_tokens": 0}

    def _read(self, value: object, *, is_whole: bool = False) -> Iterator[SdkEvent]:
        for event in cast(list[object], value) if isinstance(value, list) else [value]:
            table = _as_dict(event)
            if (error := _error_of(table)) is not None:
                yield from self._fail(error, b"", is_error=True)
            elif table.get("type") == "message":
                for one in _message_events(table):
                    yield from self._read_event(one)
            else:
                yield from self._read_event(table)

    def _read_event(self, event: _Table) -> Iterator[SdkEvent]:
        kind = event.get("type")
        if kind not in ("message_start", "message_delta", "message_stop") and not str(kind).startswith("content_"):
            self._has_other = self._has_other or bool(event and kind != "ping")
            return
        if kind == "message_start" or not self._has_read:
            if not self._has_read:
                yield _MessagesEvent(_message_start(_as_dict(event.get("message"))))
            self._has_read = True
        index = _count(event.get("index"))
        if kind == "content_block_start":
            yield from self._start(index, _as_dict(event.get("content_block")))
        elif kind == "content_block_delta":
            yield from self._delta(index, _as_dict(event.get("delta")))
        elif kind == "content_block_stop":
            yield from self._end_block()
            yield _MessagesEvent({"type": kind, "index": self._number(index)})
        elif kind in ("message_delta", "message_stop"):
            yield from self._end_message(event)

    def _number(self, index: int | None) -> int:
        return self._last if index is None else self._blocks.get(index, self._last)

    def _start(self, index: int | None, block: _Table) -> Iterator[SdkEvent]:
        yield from self._end_block()
        self._last += 1
        self._blocks[self._last if index is None else index] = self._last
        if (kind := block.get("type")) in _BLOCKS:
            texts = {name: _joined_text(block.get(name)) for name in _BLOCKS[kind]}
            block = {**block, **texts}
            if kind == "text" and not isinstance(block.get("citations"), list):
                block["citations"] = None
            if kind == "tool_use":
                id_ = block.get("id")
                self._input = _arguments(block.get("input")).strip()
                block |= {"input": {}, "id": id_ if isinstance(id_, str) and id_ else f"toolu_{self._last}"}
        yield _MessagesEvent({"type": "content_block_start", "index": self._last, "content_block": block})

    def _delta(self, index: int | None, delta: _Table) -> Iterator[SdkEvent]:
        kind = delta.get("type")
        if kind not in (*_DELTA_TEXTS, "citations_delta"):
            kind = next((one for one, name in _DELTA_TEXTS.items() if isinstance(delta.get(name), str)), "")
        if kind in _DELTA_TEXTS:
            text = _arguments(delta.get(_DELTA_TEXTS[kind]))
            delta = {"type": kind, _DELTA_TEXTS[kind]: text}
            if kind == "input_json_delta" and text.strip() == "{}":
                self._input, text = self._input or text, ""
            if not text:
                return
        elif not isinstance(_as_dict(delta.get("citation")).get("type"), str):
            return
        if index not in (None, *self._blocks) or self._last < 0:
            block = {"thinking_delta": "thinking", "input_json_delta": "tool_use"}.get(kind, "text")
            yield from self._start(index, {"type": block})
        if kind == "input_json_delta":
            self._input = ""
        yield _MessagesEvent({"type": "content_block_delta", "index": self._number(index), "delta": delta})

    def _end_block(self) -> Iterator[SdkEvent]:
        given, self._input = self._input, ""
        if given not in ("", "{}"):
            delta = {"type": "input_json_delta", "partial_json": given}
            yield _MessagesEvent({"type": "content_block_delta", "index": self._last, "delta": delta})

    def _end_message(self, event: _Table) -> Iterator[SdkEvent]:
        yield from self._end_block()
        delta = _as_dict(event.get("delta"))
        reason = _text_of(delta.get("stop_reason"), ("type", "reason"))
        if event["type"] == "message_stop" and self._ends_at is None:
            reason = "end_turn"  # the answer is whole, although no reason came
        if reason or event.get("usage"):
            last = {"type": "message_delta", "delta": {**delta, "stop_reason": reason}}
            self._usage |= _messages_usage(event.get("usage"))
            yield _MessagesEvent({**last, "usage": self._usage})
        if reason:
            self._note_end()
        if event["type"] == "message_stop":
            yield _MessagesEvent({"type": "message_stop"})

    def _error_event(self, error: _Table) -> SdkEvent:
        return _MessagesEvent({"type": "error", "error": error})


def _messages_usage(value: object) -> _Table:
    given = _as_dict(value)
    return {name: count for name in _USAGE if (count := _count(given.get(name))) is not None}


def _message_start(message: _Table) -> _Table:
    texts = {name: text if isinstance(text := message.get(name), str) else "" for name in ("id", "model")}
    usage = {"input_tokens": 0, "output_tokens": 0, **_messages_usage(message.get("usage"))}
    said: _Table = {**texts, "type": "message", "role": "assistant", "content": [], "stop_reason": None, "usage": usage}
    return {"type": "message_start", "message": said}


def _message_events(message: _Table) -> Iterator[_Table]:
    """Yield the events that a whole message stands for."""
    yield {"type": "message_start", "message": message}
    content: Any = message.get("content")
    for block in _tables([{"type": "text", "text": content}] if isinstance(content, str) else content):
        yield {"type": "content_block_start", "content_block": block}
        yield {"type": "content_block_stop"}
    reason = message.get("stop_reason") or "end_turn"
    yield {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": message.get("usage")}
    yield {"type": "message_stop"}


# --- errors and values ------------------------------------------------------------------------------------------------


def _error_of(event: _Table) -> _Table | None:
    """Return the error of a chunk, wherever it is; None if there is none."""
    for holder in (event, *_tables(event.get("choices"))):
        if error := holder.get("error"):
            return _error_table(holder if error is True else error)
    if event.get("object") == "error" or event.get("type") == "error":
        return _error_table(event)
    if errors := event.get("errors"):
        return _error_table(next(iter(_tables(errors)), None) or _joined_text(errors))
    state = _as_dict(event.get("base_resp"))
    if state.get("status_code") and not event.get("choices"):
        return _error_table(state)
    is_chunk = any(name in event for name in ("choices", "usage", "response", "item", "delta", "output"))
    return None if is_chunk or not _text_of(event, ("message", "detail", "msg", "error_msg")) else _error_table(event)


def _error_table(value: object) -> _Table:
    """Return an error as the SDK reads it: with a message, and a code and a type if the server sent them."""
    table = _as_dict(value)
    if inner := _as_dict(table.get("error")):
        table = {**table, **inner}
    message = words_of(table)
    more = {name: one for name in ("code", "type") if isinstance(one := table.get(name), str | int) and one is not True}
    return {**table, "code": None, "type": None, **more, "message": message or ("" if table else _joined_text(value))}


def _as_dict(value: object) -> _Table:
    return cast(_Table, value) if isinstance(value, dict) else {}


def _tables(value: object) -> list[_Table]:
    """Return the objects of a list, or the one object in place of a list. PHP writes lists as objects with numbers."""
    found: list[object] = cast(list[object], value) if isinstance(value, list) else [value]
    if isinstance(value, dict) and all(name.isdecimal() for name in _as_dict(cast(object, value))):
        found = [*_as_dict(cast(object, value)).values()]
    return [cast(_Table, one) for one in found if isinstance(one, dict)]


def _read_json(value: object) -> object:
    """Return the value of a text that is JSON."""
    return _parsed(value.encode(errors="replace")) if isinstance(value, str) else value


def _text_of(value: object, names: Sequence[str]) -> str | None:
    """Return the text, or the first text of an object under these names."""
    found = [value, *(_as_dict(value).get(name) for name in names)]
    return next((one for one in found if isinstance(one, str)), None)
