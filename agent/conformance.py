"""Checks that an OpenAI-compatible server keeps the laws of a stream: `python -m agent.conformance URL`.

It reads the raw events of a few small requests, because a client of a library would repair what is wrong. A law that
no answer could show, such as that of tools for a model without tools, is "not shown" and never "ok". The doctor makes
two of the requests to the server in VLLM_BASE_URL.
"""

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import httpx2

from agent.errors import AgentError, InputError
from agent.fetch import tls_context
from agent.models.catalog import ModelSpec, load_catalog
from agent.providers.connection import Endpoint
from agent.providers.discovery import discover
from agent.providers.errors import check_base_url
from agent.providers.think_tags import CLOSE, OPEN, ThinkTags

Json = dict[str, Any]
State = Literal["ok", "broken", "not shown"]
Outcome = tuple[State, str, str]
"""The state of a law, what was found, and the piece of the stream that shows it."""

REQUEST_SECONDS = 60.0
CANCEL_SECONDS = 5.0
"""Seconds after which a server must have noticed that its client has gone."""
MOST_BYTES = 4 * 2**20
"""Bytes of an answer that are read."""
CUT_TOKENS, LONG_TOKENS = 8, 2000
"""Tokens of the answer that `max_tokens` cuts, and of the one that is cancelled."""
LAWS = {
    "events": (
        "Each event is one JSON object in a text/event-stream.",
        "A client skips such an event or fails, and a part of the answer is missing.",
    ),
    "end": (
        "The stream ends with one [DONE].",
        "A client cannot tell a whole answer from a lost connection, or waits until its time is over.",
    ),
    "finish": (
        "The last delta has the reason of the end: stop, length or tool_calls.",
        "A client takes a cut answer for a whole one, or does not run the call of a tool.",
    ),
    "usage": (
        "The usage comes if stream_options.include_usage asks for it.",
        "A client cannot tell how full the model's context is or what the answer cost.",
    ),
    "text": (
        "Characters are whole in each delta, and the text has no token of the chat template.",
        "People see \ufffd or tokens of the template, and a database can refuse the text.",
    ),
    "order": (
        "Each kind of content is one piece: reasoning, then text, then calls.",
        "A client that opens a bubble for each kind shows a second or an empty one.",
    ),
    "reasoning": (
        "Reasoning is in a field of its own, not in the text.",
        "People see the reasoning and its tags in the answer, and the next request sends them back to the model.",
    ),
    "tools": (
        "A call has an index, an id and a name once, and arguments that are a JSON object.",
        "A client cannot run the call, or runs it twice.",
    ),
    "pairing": ("The result of a call is accepted with its id.", "No conversation with a tool can go on."),
    "cancel": (
        "The server ends an answer when its client disconnects.",
        "Each stopped answer goes on to use the server, and other people wait for it.",
    ),
}
"""The sentence of each law, and the consequence for a client if a server breaks it."""
_ZONE = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
_FUNCTION = {"name": "current_time", "description": "The time of day.", "parameters": _ZONE}
CLOCK = {"type": "function", "function": _FUNCTION}


def _said(*texts: str) -> list[Json]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


THINK = _said("Is 7 a prime? Think, then answer in one word.")
REPEAT = _said("Repeat: 🍎 café", "🍎 café", "Repeat: 北京 🚲", "北京 🚲", "Repeat: 👩\u200d🚀 你好 é 🎉")
COUNT = _said("Count from 1 to 1000, in digits.")
WRITE = _said("Write the numbers from 1 to 1000 as words.")
CALL = _said("What time is it in Paris? Call the tool.")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the check of one law. `piece` is the part of the stream that breaks it, or ""."""

    law: str
    state: State
    message: str
    piece: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream: its lines, its data, and the JSON object in it."""

    raw: str
    data: str
    value: Json | None


@dataclass(slots=True)
class Answer:
    """The raw answer to one request. `status` is 0 if no answer came, and `failure` says how it broke off."""

    tokens: int
    status: int = 0
    content_type: str = ""
    body: bytes = b""
    failure: str = ""
    events: list[Event] = field(default_factory=list[Event])
    rest: str = ""

    @property
    def last(self) -> str:
        return next((event.raw for event in reversed(self.events) if event.value is not None), visible(self.body))

    def choices(self) -> Iterator[tuple[Json, Event]]:
        return ((one, event) for event in self.events for one in _objects((event.value or {}).get("choices")))

    def deltas(self) -> Iterator[tuple[str, Any, Event]]:
        """Yield each content with its kind and its event. The kinds are reasoning, text, call and finish."""
        for choice, event in self.choices():
            delta = cast(Json, choice.get("delta") or {})
            if reasoning := delta.get("reasoning") or delta.get("reasoning_content"):
                yield "reasoning", reasoning, event
            if delta.get("content"):
                yield "text", delta["content"], event
            for call in _objects(delta.get("tool_calls")):
                yield "call", call, event
            if choice.get("finish_reason") is not None:
                yield "finish", choice["finish_reason"], event

    def usage(self) -> tuple[Json, Event] | None:
        """Return the last usage with its event, or None if the server tells none."""
        found = [(cast(Json, one.value["usage"]), one) for one in self.events if one.value and one.value.get("usage")]
        return found[-1] if found else None

    @property
    def counted(self) -> int:
        """The tokens of the answer by the server's count, or the most that were asked for if it has none."""
        tokens = found[0].get("completion_tokens") if (found := self.usage()) else None
        return tokens if isinstance(tokens, int) else self.tokens

    def joined(self, kind: str) -> str:
        return "".join(content for one, content, _ in self.deltas() if one == kind and isinstance(content, str))

    def calls(self) -> list[Json]:
        """Return the calls as a client sends them back."""
        found: dict[object, Json] = {}
        for call in (content for kind, content, _ in self.deltas() if kind == "call"):
            new = {"id": call.get("id"), "type": "function", "function": {"name": "", "arguments": ""}}
            whole = found.setdefault(call.get("index"), new)["function"]
            for name, piece in cast(Json, call.get("function") or {}).items():
                whole[name] = str(whole.get(name, "")) + str(piece or "")
        return list(found.values())


def read_events(body: bytes) -> tuple[list[Event], str]:
    """Return the events of a stream, and what follows the last blank line. Invalid UTF-8 becomes lone surrogates."""
    lines = body.decode("utf-8", "surrogateescape").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    *blocks, rest = lines.split("\n\n")
    events: list[Event] = []
    for block in filter(str.strip, blocks):
        data = "\n".join(line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:"))
        try:
            value: object = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        events.append(Event(block.strip("\n"), data, cast(Json, value) if isinstance(value, dict) else None))
    return events, rest


@asynccontextmanager
async def client_of(endpoint: Endpoint) -> AsyncGenerator[httpx2.AsyncClient]:
    """Return a client for an endpoint, without a proxy if the server is on this machine."""
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    is_far = urlsplit(endpoint.base_url).hostname not in ("localhost", "127.0.0.1", "::1")
    tls = tls_context()
    async with httpx2.AsyncClient(headers=headers, timeout=REQUEST_SECONDS, verify=tls, trust_env=is_far) as client:
        yield client


def _request(base_url: str, model: str, messages: Sequence[Json], tokens: int, **more: Any) -> Json:
    asked = {"model": model, "messages": messages, "max_tokens": tokens, **more}
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return {"method": "POST", "url": f"{base_url}/chat/completions", "json": asked}


async def ask(
    client: httpx2.AsyncClient, base_url: str, model: str, messages: Sequence[Json], tokens: int = 256, **more: Any
) -> Answer:
    """Return the raw answer to a streamed request. Never raises for what a server does."""
    answer, body = Answer(tokens), bytearray()
    try:
        async with (
            asyncio.timeout(REQUEST_SECONDS),
            client.stream(**_request(base_url, model, messages, tokens, **more)) as response,
        ):
            answer.status, answer.content_type = response.status_code, response.headers.get("content-type", "")
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MOST_BYTES:
                    answer.failure = f"the answer is longer than {MOST_BYTES} bytes"
                    break
    except TimeoutError:
        answer.failure = f"no end came within {REQUEST_SECONDS:.0f} seconds"
    except httpx2.HTTPError as error:
        answer.failure = f"the connection broke ({type(error).__name__})"
    answer.body = bytes(body)
    answer.events, answer.rest = read_events(answer.body)
    return answer


async def examine_server(endpoint: Endpoint | str, model: str | None = None) -> list[Finding]:
    """Return what is found about each law with this model, or the first one that the server lists.

    `endpoint` can be the base URL; without a path, /v1 is added. Raises `InputError` for one that is none, and
    `AgentError` if the server cannot be reached, or does not answer the first request.
    """
    endpoint = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
    if not urlsplit(endpoint.base_url.rstrip("/")).path:
        endpoint = replace(endpoint, base_url=f"{endpoint.base_url.rstrip('/')}/v1")
    check_base_url(endpoint.base_url)
    try:
        models = await discover(endpoint)
        spec = next((one for one in models if one.name == model), None)
        spec = spec or (load_catalog().find(model, "vllm") if model else models[0])
    except AgentError:
        if not model:
            raise
        spec = load_catalog().find(model, "vllm")
    async with client_of(endpoint) as client:
        return await examine(client, endpoint.base_url, spec)


async def examine(client: httpx2.AsyncClient, base_url: str, spec: ModelSpec) -> list[Finding]:
    """Return what is found about each law. Raises `AgentError` if the server does not answer the first request."""

    async def asked(messages: Sequence[Json], tokens: int = 256, **more: Any) -> Answer:
        return await ask(client, base_url, spec.name, messages, tokens, **more)

    first = await asked(THINK, min(1024, spec.context_tokens // 2))
    if first.status != 200:
        said = f"it answers HTTP {first.status}: {visible(first.body)}" if first.status else first.failure
        raise AgentError(f"The server at {base_url} does not stream: {said}")
    quiet = without_reasoning(spec)
    answers = {
        "think": first,
        "repeat": await asked(REPEAT, 128, **quiet),
        "cut": await asked(COUNT, CUT_TOKENS, **quiet),
        "call": await asked(CALL, tools=[CLOCK], tool_choice="auto", **quiet),
    }
    if (
        answers["call"].status == 200 and _tools(answers["call"])[0] == "not shown"
    ):  # a small model calls none by itself
        forced = await asked(CALL, tools=[CLOCK], tool_choice="required", **quiet)
        answers |= {"call": forced} if forced.calls() else {}
    if calls := answers["call"].calls():
        results = [{"role": "tool", "tool_call_id": one["id"], "content": "12:30"} for one in calls]
        messages = [*CALL, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
        answers["result"] = await asked(messages, tools=[CLOCK], **quiet)
    found = judge(answers)
    return [*found.values(), Finding("cancel", *await _cancel(client, base_url, spec))]


def without_reasoning(spec: ModelSpec) -> Json:
    """Return the fields of a request that turn the reasoning of a model off, if that is possible."""
    return {"chat_template_kwargs": {"enable_thinking": False}} if spec.reasoning and not spec.always_reasons else {}


def judge(answers: Mapping[str, Answer]) -> dict[str, Finding]:
    """Return what the answers show about each law but that of cancelling. They have the names of `examine`."""
    streams = [one for one in answers.values() if one.status == 200]
    laws = (_events, _end, _finish, _usage, _text, _order, _reasoning)
    outcomes = {law.__name__[1:]: law(streams) if streams else _not_shown("no stream came") for law in laws}
    outcomes |= {"tools": _tools(answers.get("call")), "pairing": _pairing(answers.get("result"))}
    return {law: Finding(law, *outcome) for law, outcome in outcomes.items()}


def _broken(message: str, piece: str) -> Outcome:
    return "broken", message, piece


def _not_shown(message: str, piece: str = "") -> Outcome:
    return "not shown", message, piece


def _events(streams: Sequence[Answer]) -> Outcome:
    also: set[str] = set()
    for one in streams:
        if not one.content_type.startswith("text/event-stream"):
            return _broken(f"the content type is {one.content_type or 'missing'}", visible(one.body))
        for event in one.events:
            if not event.data:
                also.add("events without data, such as comments")
            elif event.data != "[DONE]":
                if event.value is None:
                    return _broken("an event is not a JSON object", event.raw)
                if event.value.get("error"):
                    return _broken("an error comes within the stream", event.raw)
                if not isinstance(event.value.get("choices"), list):
                    return _broken("an event has no list of choices", event.raw)
                also.update([] if event.value["choices"] else ["events without choices"])
        for choice, event in one.choices():
            delta = choice.get("delta")
            if not isinstance(delta, dict):
                return _broken("a choice has no delta", event.raw)
            contents = [cast(Json, delta).get(name) for name in ("content", "reasoning", "reasoning_content")]
            if not all(isinstance(content, str | None) for content in contents):
                return _broken("the content of a delta is not a string", event.raw)
            also.update([] if any(cast(Json, delta).values()) else ["empty deltas"])
        if one.rest.strip():
            return _broken("no blank line follows the last event, so clients drop it", one.rest)
        also.update(["lines that end with CRLF"] if b"\r\n" in one.body else [])
    return "ok", f"allowed, and a client must expect it: {', '.join(sorted(also))}" if also else "nothing else", ""


def _end(streams: Sequence[Answer]) -> Outcome:
    for one in streams:
        ends = [event.data for event in one.events if event.data]
        if one.failure or "[DONE]" not in ends:
            return _broken(one.failure or "no [DONE] comes", one.last)
        if ends.index("[DONE]") != len(ends) - 1:
            return _broken("something follows [DONE]", one.last)
    return "ok", f"{len(streams)} streams did", ""


def _finish(streams: Sequence[Answer]) -> Outcome:
    shown: set[str] = set()
    for one in streams:
        deltas = list(one.deltas())
        reason, event = next(((what, event) for kind, what, event in deltas if kind == "finish"), (None, None))
        if event is None:
            return _broken("no delta has a finish_reason", one.last)
        if deltas[-1][2] is not event:
            return _broken("more follows the finish_reason", deltas[-1][2].raw)
        said = f"the finish_reason is {reason!r}"
        if reason not in ("stop", "length", "tool_calls", "content_filter"):
            return _broken(f"{said}, which clients do not know", event.raw)
        if reason in ("stop", "tool_calls") and (reason == "tool_calls") != bool(one.calls()):
            return _broken(f"{said}, {'although a tool is called' if one.calls() else 'but no call came'}", event.raw)
        is_whole = one.counted < CUT_TOKENS  # the model has stopped by itself
        if one.tokens == CUT_TOKENS and reason == "stop" and not is_whole and re.search(r"\d", one.joined("text")):
            return _broken(f"{said}, although the answer is cut at its max_tokens, or they are ignored", event.raw)
        shown.add(str(reason))
    return "ok", f"seen: {', '.join(sorted(shown))}", ""


def _usage(streams: Sequence[Answer]) -> Outcome:
    for one in streams:
        if (found := one.usage()) is None:
            return _broken("no usage comes", one.last)
        usage, event = found
        prompt, answer, total = (usage.get(f"{name}_tokens") for name in ("prompt", "completion", "total"))
        if not (isinstance(prompt, int) and isinstance(answer, int) and prompt > 0 and answer > 0):
            return _broken("the tokens of the prompt or of the answer are missing", event.raw)
        if total != prompt + answer:
            return _broken(f"the total is {total}, not {prompt} + {answer}", event.raw)
    return "ok", "it comes with each stream", ""


def _text(streams: Sequence[Answer]) -> Outcome:
    for one in streams:
        said = [(content, event) for kind, content, event in one.deltas() if kind in ("text", "reasoning")]
        for number, (content, event) in enumerate(said, 1):
            is_cut = number == len(said)  # max_tokens can cut a character
            if re.search("[\ud800-\udfff]", str(content)) or ("\ufffd" in content and not is_cut):
                return _broken("a delta has a part of a character, or invalid UTF-8", event.raw)
        text, tags = one.joined("text"), ThinkTags()
        pieces = [*tags.feed(text), tags.end()]
        if None not in pieces and text.startswith(rest := "".join(filter(None, pieces))) and rest != text:
            return _broken("tokens of the chat template end the text", text[len(rest) :])
    if not re.search("[\U00010000-\U0010ffff]", "".join(one.joined("text") for one in streams)):
        return _not_shown("the model wrote no emoji, although it was told to")
    return "ok", "characters of four bytes come whole", ""


def _order(streams: Sequence[Answer]) -> Outcome:
    is_shown = False
    for one in streams:
        contents = [delta for delta in one.deltas() if delta[0] != "finish"]
        kinds = [(kind, next(group)[2]) for kind, group in groupby(contents, lambda delta: delta[0])]
        names = [kind for kind, _ in kinds]
        for number, (kind, event) in enumerate(kinds):
            if kind in names[:number] or (kind == "reasoning" and number):
                return _broken(f"{kind} comes after {names[number - 1]}", event.raw)
        is_shown = is_shown or len(names) > 1
    return ("ok", "each kind came once", "") if is_shown else _not_shown("no answer had two kinds of content")


def _reasoning(streams: Sequence[Answer]) -> Outcome:
    for one in streams:
        for kind in ("text", "reasoning"):
            text, tags = one.joined(kind), ThinkTags()
            if {None, OPEN, CLOSE} & {*tags.feed(text)}:
                return _broken(f"the {kind} has the tags of reasoning", text)
    if not any(one.joined("reasoning") for one in streams):
        return _not_shown("the model wrote no reasoning")
    return "ok", "it comes apart from the text", ""


def _tools(answer: Answer | None) -> Outcome:
    if answer is None or answer.status != 200:
        return _not_shown("it refuses tools" if answer else "it was not asked", visible(answer.body) if answer else "")
    begun: dict[int, str] = {}
    for call, event in ((content, event) for kind, content, event in answer.deltas() if kind == "call"):
        index, function = call.get("index"), cast(Json, call.get("function") or {})
        if not isinstance(index, int):
            return _broken("a piece of a call has no index", event.raw)
        if not isinstance(function.get("arguments"), str | None):
            return _broken("the arguments are not a text", event.raw)
        if index in begun and (function.get("name") or call.get("id", begun[index]) not in (begun[index], None, "")):
            return _broken("the name of a call comes twice, or its id changes", event.raw)
        if index not in begun and not (call.get("id") and function.get("name")):
            return _broken("the first piece of a call has no id or no name", event.raw)
        if index not in begun and call["id"] in begun.values():
            return _broken("two calls have the same id", event.raw)
        begun.setdefault(index, str(call.get("id")))
    is_cut = any(content == "length" for kind, content, _ in answer.deltas() if kind == "finish")
    for arguments in () if is_cut else (call["function"]["arguments"] for call in answer.calls()):
        if read_events(f"data: {arguments or '{}'}\n\n".encode("utf-8", "replace"))[0][0].value is None:
            return _broken("the arguments are not a JSON object", arguments)
    text = answer.joined("text")
    if not begun and any(sign in text for sign in ("<tool_call", '"current_time"', "<function=")):
        return _broken("the call is written as text", text)
    return ("ok", "the call came whole", "") if begun else _not_shown("the model called no tool when it was told to")


def _pairing(answer: Answer | None) -> Outcome:
    if answer is None:
        return _not_shown("there was no call to answer")
    if answer.status != 200:
        return _broken(answer.failure or f"it refuses the result (HTTP {answer.status})", visible(answer.body))
    if not any(answer.joined(kind) for kind in ("text", "reasoning")) and not answer.calls():
        return _broken("nothing follows the result", answer.last)
    return "ok", "the result was answered", ""


async def _cancel(client: httpx2.AsyncClient, base_url: str, spec: ModelSpec) -> Outcome:
    """Disconnect in mid-answer, and watch how many answers the server writes."""
    if (before := await _settled(client, base_url)) is None:
        return _not_shown("neither /metrics nor /slots of the server tells how many answers it writes")
    tokens, loop = min(LONG_TOKENS, spec.context_tokens // 2), asyncio.get_running_loop()
    began, sent, during = 0.0, 0, 0.0
    try:
        async with (
            asyncio.timeout(REQUEST_SECONDS),
            client.stream(**_request(base_url, spec.name, WRITE, tokens, ignore_eos=True)) as response,
        ):
            async for chunk in response.aiter_bytes():
                began, sent = began or loop.time(), sent + chunk.count(b"data:")
                if sent >= 16:
                    during = await _running(client, base_url) or 0.0
                    break
    except (TimeoutError, httpx2.HTTPError) as error:
        return _not_shown(f"the long answer failed ({type(error).__name__})")
    if during <= before:
        return _not_shown("the answer ended before its client disconnected")
    left = loop.time()
    by_itself = (tokens - sent) * (left - began) / sent
    """Seconds until the answer would end without a client."""
    while (now := await _running(client, base_url)) is None or now >= during:
        if loop.time() - left > min(CANCEL_SECONDS, by_itself / 2):
            return _broken("the answer goes on", f"answers before: {before:g}, during: {during:g}, then: {now or 0:g}")
        await asyncio.sleep(0.05)
    return "ok", "the answer ended on the server, too", ""


_RUNNING = re.compile(
    r"^(?:vllm:num_requests_running|sglang:num_running_reqs|llamacpp:requests_processing)(?:\{[^}\n]*\})? ([\d.e+]+)",
    re.MULTILINE,
)


async def _settled(client: httpx2.AsyncClient, base_url: str) -> float | None:
    """Return how many answers a server writes for others. One of ours can still be ending there."""
    least, loop = await _running(client, base_url), asyncio.get_running_loop()
    end = loop.time() + CANCEL_SECONDS
    while least and loop.time() < end:
        await asyncio.sleep(0.05)
        least = min(least, await _running(client, base_url) or 0.0)
    return least


async def _running(client: httpx2.AsyncClient, base_url: str) -> float | None:
    """Return how many answers a server writes: vLLM and SGLang say so at /metrics, llama.cpp also at /slots."""
    root = base_url.removesuffix("/v1")
    try:
        if found := _RUNNING.findall((await client.get(f"{root}/metrics")).text):
            return sum(map(float, found))
        slots = _objects((await client.get(f"{root}/slots")).json())
    except (httpx2.HTTPError, ValueError):
        return None
    states = [bool(one["is_processing"]) for one in slots if "is_processing" in one]
    return float(sum(states)) if states else None


def visible(piece: bytes | str, most: int = 300) -> str:
    """Return the beginning of what a server sent, without characters that could act on a terminal."""
    text = piece.decode("utf-8", "backslashreplace") if isinstance(piece, bytes) else piece
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[:most])
    return shown + ("…" if len(text) > most else "")


def _objects(value: object) -> list[Json]:
    found = cast(list[object], value) if isinstance(value, list) else []
    return [cast(Json, one) for one in found if isinstance(one, dict)]


def main() -> int:
    """Print what is found about each law. Return the exit status: 1 if one is broken, or if no answer came."""
    parser = argparse.ArgumentParser(
        prog="python -m agent.conformance", description="Checks the streams of an OpenAI-compatible server."
    )
    parser.add_argument("url", help="its base URL, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="the name of a model; otherwise the first one that the server lists")
    parser.add_argument("--key-from", metavar="VAR", help="the environment variable that has the key")
    given = parser.parse_args()
    url, key = str(given.url).rstrip("/"), os.environ.get(given.key_from, "") if given.key_from else None
    try:
        check_base_url(url)
        if given.key_from and not key:
            raise InputError(f"{given.key_from} is not set.")
        found = asyncio.run(examine_server(Endpoint(url, key), given.model))
    except AgentError as error:
        print(error, file=sys.stderr)
        return 1
    for one in found:
        says, consequence = LAWS[one.law]
        print(f"{one.state:9}  {one.law:9}  {says}\n{'':22}{one.message}")
        if one.piece:
            print(f"{'':22}sent: {visible(one.piece)}")
        if one.state == "broken":
            print(f"{'':22}so: {consequence}")
    return 1 if any(one.state == "broken" for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
