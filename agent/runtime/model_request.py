"""Makes the model requests of a run, retries them where that can help, and emits the answers while they stream."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from time import monotonic
from typing import Any, Literal, cast
from uuid import uuid4

from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    FilePart,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    NativeToolCallPart,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.native_tools import AbstractNativeTool, WebSearchTool
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from agent.citations import searched_queries
from agent.errors import AgentError, Limited, ProviderError
from agent.events import AttemptFailed, Observers, ProviderEvent, StepEnded, StepStarted
from agent.files.convert import convert_messages
from agent.i18n.text import LocalizedText, _, joined
from agent.limits import Fault, explain_filter, explain_limit, is_withheld
from agent.messages.adapt import adapt_and_prepare, has_pictures, has_videos
from agent.messages.cited_documents import with_document_names
from agent.messages.repair import without_end_space
from agent.models.catalog import ModelSpec
from agent.models.families import family
from agent.plain_text import off_loop
from agent.providers.connection import LearnsRefusals, SoundPiece, binds_answers, count_deltas, searches
from agent.providers.refusals import SENTENCES
from agent.providers.retry import Wait, final_error, next_wait, queued
from agent.responses import Piece, StreamDecoder, finalize, pieces_of
from agent.result import RunPlan
from agent.runtime.usage import UsageMeter
from agent.system.threads import PREPARING
from agent.tools.function_tools import Tool

log = logging.getLogger(__name__)
MOST_SEARCHES = 5
"""The most searches of a provider in one request where searches are counted, if its API has such a limit."""


class ModelRequests:
    """The model requests of one run, one after the other. Owns the open stream.

    `emit` gets each piece of text and reasoning, `relabel` the new type and the text of a bubble whose type was wrong.
    `on_wait` gets each pause before a retry and each place in the request queue, and None when the wait is over. The
    `observers` get all events. `has_begun`: text, reasoning or a call of the last answer has come, also a broken call
    that was not emitted. `unshown_usage` is what the server counted for an answer that was withheld or empty.
    `on_sound` gets each piece of the sound that the model writes.
    `corrections` gets a sentence for each thing that the server turned out not to take.
    With `RunPlan.count_search`, each request that may search counts as a search before it is made, and each further
    search that the provider reports counts, too. If the first one is refused, so is the run; later requests go without.
    """

    def __init__(
        self,
        run_id: str,
        plan: RunPlan,
        meter: UsageMeter,
        emit: Callable[[Piece], None],
        relabel: Callable[[Piece], None],
        on_wait: Callable[[Wait | None], None],
        observers: Observers,
        corrections: list[LocalizedText],
        on_sound: Callable[[SoundPiece], None] = lambda _: None,
    ) -> None:
        self.freed_at = 0.0
        self.unshown_usage: RequestUsage | None = None
        self.plan = plan
        self._run_id, self._meter = run_id, meter
        self._emit, self._relabel, self._on_wait, self._observers = emit, relabel, on_wait, observers
        self._corrections, self._on_sound = corrections, on_sound
        self._open: StreamedResponse | None = None
        self._emitted = self._continues = self.has_begun = False
        self._is_bound, self._unbindable = False, ""
        self._has_searched = False
        self._seam = ""
        self._messages: Sequence[ModelMessage] = ()
        self._history: Sequence[ModelMessage] = ()
        self._sent: Sequence[ModelMessage] = ()
        self._spec = plan.connection.spec

    async def request(
        self, messages: Sequence[ModelMessage], tools: Iterable[Tool], history: Sequence[ModelMessage] | None = None
    ) -> ModelResponse:
        """Return the model's complete answer, which can call the tools. Raises `ProviderError`.

        `messages` are what is sent of the `history`; None: they are all of it.

        A request is repeated only if nothing of its answer was emitted, because people have seen what was emitted.
        If the messages end with an unfinished answer, the model continues that.
        """
        self._open, self._history = None, messages if history is None else history
        definitions = [tool.definition for tool in tools]
        sent, offered = await self._prepare(messages, definitions)
        if not self._observers:
            return await self._with_retries(messages, definitions, sent, offered)
        response, failed = None, None
        self._observers(StepStarted(sent, self._settings()))
        try:
            response = await self._with_retries(messages, definitions, sent, offered)
            return response
        except ProviderError as failure:
            failed = failure
            raise
        finally:
            self._observers(StepEnded(response or self.partial_response(), failed))

    async def _prepare(
        self, messages: Sequence[ModelMessage], tools: list[ToolDefinition]
    ) -> tuple[list[ModelMessage], list[ToolDefinition]]:
        """Return the messages and the tools to send, as the model takes them now."""
        spec = self._spec = self.plan.connection.spec
        if tools and spec.tools == "none":
            told = LocalizedText(SENTENCES["tools"], {"model": spec.label})
            self._corrections += [told] if told not in self._corrections else []
            tools = []
        adapted = await off_loop(messages, adapt_and_prepare, messages, spec, self._system_message(tools))
        sent = await convert_messages(adapted, spec)
        sent, self._seam = without_end_space(sent)
        self._messages, self._sent, self._continues = messages, sent, isinstance(sent[-1], ModelResponse)
        return sent, tools

    def _system_message(self, tools: Sequence[ToolDefinition]) -> str:
        """Return the system message. It tells the form of the answer unless the server shows the model its schema."""
        system, output, spec = self.plan.system_message, self.plan.output, self._spec
        if output is None:
            return system
        can_bind = binds_answers(spec, has_tools=bool(tools), is_open=output.is_open)
        self._is_bound = can_bind and self._unbindable != spec.id
        if not self._is_bound:
            told = _("No JSON schema can bind this answer of {model}, so its prompt tells the form.", model=spec.label)
            self._corrections += [told] if told not in self._corrections else []
        elif spec.dialect != "chat":  # servers of this one only constrain what is sampled
            return system
        return "\n\n".join(filter(None, [system, output.instruction]))

    async def _with_retries(
        self,
        messages: Sequence[ModelMessage],
        tools: list[ToolDefinition],
        sent: list[ModelMessage],
        offered: list[ToolDefinition],
    ) -> ModelResponse:
        tried = 0
        while True:
            tried, self._emitted, self.has_begun = tried + 1, False, False
            try:
                response = await self._attempt(sent, offered)
            except ProviderError as failure:
                if (pause := await self._correction(failure, sent, offered)) is not None:
                    if self._observers:
                        self._observers(AttemptFailed(failure, pause))
                    self._open, tried = None, tried - 1
                    sent, offered = await self._prepare(messages, tools)
                    continue
                retries = 0 if self._emitted else self.plan.limits.retries
                pause = next_wait(failure, tried=tried, retries=retries, now=monotonic())
                if pause is None:
                    raise final_error(failure, tried=tried) from failure
                if self._observers:
                    self._observers(AttemptFailed(failure, pause))
                self._open = None  # drop the failed stream, so that a run that ends in the pause keeps nothing of it
                await self._wait(pause)
            else:
                names = {tool.name for tool in offered}
                parts = await off_loop(self._history, _valid_parts, response, self._history, names)
                self._open = None
                self._meter.count_step(response.usage)
                return replace(response, parts=parts)

    async def _correction(
        self, failure: ProviderError, sent: Sequence[ModelMessage], offered: Sequence[ToolDefinition]
    ) -> Wait | None:
        """Return a wait of no time if the server refused something that the connection now leaves out."""
        connection = self.plan.connection
        if self._is_bound and not self._emitted and isinstance(failure.__cause__, UserError | ValueError):
            self._unbindable = self._spec.id  # the library does not send this schema to this model
            return Wait(until=monotonic(), seconds=0.0, sentence=LocalizedText(""))
        if self._emitted or not isinstance(connection, LearnsRefusals):
            return None
        if connection.spec is not self._spec:  # another run has learnt something meanwhile
            return Wait(until=monotonic(), seconds=0.0, sentence=LocalizedText(str(failure.text)))
        pictures, videos = await off_loop(sent, lambda: (has_pictures(sent), has_videos(sent)))
        sentence = connection.learn(
            failure.__cause__, pictures=pictures, tools=bool(offered), schema=self._is_bound, videos=videos
        )
        if sentence is None:
            return None
        self._corrections.append(sentence)
        return Wait(until=monotonic(), seconds=0.0, sentence=sentence)

    @property
    def _one_text(self) -> bool:
        return self._spec.dialect == "messages"  # it begins a new text for each citation

    def partial_response(self) -> ModelResponse | None:
        """Return the readable part of an unfinished answer, if there is one."""
        try:
            return self._finalized(self._open.get(), "interrupted") if self._open is not None else None
        except Exception:  # a library's error about a broken stream must not keep a run from ending
            log.exception("run %s: its half answer is lost", self._run_id)
            return None

    async def _attempt(self, sent: list[ModelMessage], offered: list[ToolDefinition]) -> ModelResponse:
        decoder, deltas, reported = StreamDecoder(self._seam, one_text=self._one_text), count_deltas(), 0
        try:
            async with self._slot(), self._stream(sent, offered) as stream:
                self._open = stream
                async for event in stream:
                    if isinstance(event, SoundPiece):
                        self._emitted = True
                        self._on_sound(event)
                        continue
                    if self._observers:
                        self._observers(ProviderEvent(event))
                    self.has_begun |= isinstance(event, PartStartEvent) and isinstance(event.part, ToolCallPart)
                    for _search in range(_reported_searches(event)):
                        reported += 1
                        self._count_reported(reported)
                    for piece in decoder.feed(event):
                        self._emitted = self.has_begun = True
                        self._meter.count_delta(piece[0], deltas.take())
                        self._emit(piece)
                    if (piece := decoder.take_relabelled()) is not None:
                        self._meter.relabel(piece[0])
                        self._relabel(piece)
        except (AgentError, asyncio.CancelledError):
            raise
        except Exception as failure:
            log.info("run %s: %s", self._run_id, type(failure).__name__)  # `explain` logs the rest, redacted
            raise self.plan.connection.explain(failure) from failure
        finally:
            self.freed_at = monotonic()
        # A thread looks for the named pages: the texts of all documents can be long.
        streamed = stream.get()
        response = await PREPARING.run(self._finalized, streamed, "complete")
        return self._checked(streamed, response, {tool.name for tool in offered})

    @asynccontextmanager
    async def _stream(
        self, sent: list[ModelMessage], offered: list[ToolDefinition]
    ) -> AsyncGenerator[StreamedResponse]:
        """Open the stream of an answer."""
        native, settings = self._search(), self._settings()
        if native and self._spec.provider == "google":  # its older models take no functions beside it
            offered = []
        if native and self._spec.provider == "openai" and self._spec.dialect == "responses":
            settings = cast(ModelSettings, {"openai_include_web_search_sources": True, **settings})
        parameters, output = ModelRequestParameters(function_tools=offered, native_tools=native), self.plan.output
        if output is not None and self._is_bound:
            wanted = OutputObjectDefinition(output.schema)
            parameters = replace(parameters, output_mode="native", output_object=wanted)
        opening = await off_loop(
            sent,
            model_request_stream,
            self.plan.connection.model(),
            sent,
            model_settings=settings,
            model_request_parameters=parameters,
        )
        async with opening as stream:
            yield stream

    def _search(self) -> list[AbstractNativeTool]:
        """Return the provider's search, if the model may search now, and count it. Raises `Limited` for the first."""
        if not (self.plan.has_search and searches(self._spec)):
            return []
        if self.plan.count_search is None:
            return [WebSearchTool()]
        try:
            with self.plan.count_search():
                self._has_searched = True
        except Limited:
            if self._has_searched:  # the run goes on with what it has found
                return []
            raise
        return [WebSearchTool(max_uses=MOST_SEARCHES if self._spec.dialect == "messages" else None)]

    def _count_reported(self, number: int) -> None:
        """Count a search that the provider reports. The first of a request is counted before it."""
        if self.plan.count_search is not None and number > 1:
            with suppress(Limited), self.plan.count_search():
                pass  # the provider has searched already: the limit refuses the next request

    def _checked(self, streamed: ModelResponse, response: ModelResponse, tools: Collection[str]) -> ModelResponse:
        """Return the finished `response`. Raises `ProviderError` if it broke off, is empty, or calls tools as text."""
        details = streamed.provider_details or {}
        response = _without_truncated_calls(response)
        if is_withheld(streamed.finish_reason, details):
            response = replace(response, finish_reason="content_filter")
            # Other providers refuse a blocked prompt with an HTTP error, so this is one, too.
            if details.get("block_reason") or not self._is_shown(response):
                self.unshown_usage = response.usage
                raise ProviderError(explain_filter(details), kind="refusal")
        elif _broke_off(streamed):
            raise ProviderError("The answer broke off: the model server ended it too early.", kind="interrupted")
        elif fault := self._emptiness(response):
            self.unshown_usage = response.usage
            raise ProviderError(explain_limit(fault, self.plan.limits), kind="empty")
        elif self.plan.connection.spec.tools == "native" and _calls_as_text(response, tools):
            self.unshown_usage = response.usage
            raise ProviderError(_explain_call_as_text(self.plan.connection.spec), kind="unsupported")
        return response

    def _finalized(self, streamed: ModelResponse, state: Literal["complete", "interrupted"]) -> ModelResponse:
        named = with_document_names(streamed, self._sent, self._history)
        return finalize(named, state=state, seam=self._seam, one_text=self._one_text)

    def _emptiness(self, response: ModelResponse) -> Fault | None:
        """Return the fault of an answer of which nothing can be shown; None if there is something."""
        if self._is_shown(response) or any(isinstance(part, FilePart) for part in response.parts):
            return None
        if response.finish_reason == "length":
            return "empty_truncated"
        return None if self._continues else "empty"  # nothing to add: the text that it continues was complete

    def _is_shown(self, response: ModelResponse) -> bool:
        """Return True if readers of the run see a response for any part of this answer."""
        kinds = {kind for kind, _content in pieces_of(response)}
        return bool(kinds - {"reasoning"} if self.plan.options.ignore_reasoning else kinds)

    @asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None]:
        """Wait for a slot at the server. The waiting time does not count as time of the model or the run."""
        began: float | None = None
        is_waiting = False

        def on_position(before: int) -> None:
            nonlocal began, is_waiting
            began, is_waiting = began or monotonic(), True
            self._on_wait(queued(before))

        def end_wait() -> None:
            nonlocal is_waiting
            if began is not None and is_waiting:
                self._meter.add_queue_time(monotonic() - began)
                is_waiting = False
                self._on_wait(None)

        try:
            async with self.plan.connection.slot(on_position):
                end_wait()
                yield
        finally:
            end_wait()

    async def _wait(self, pause: Wait) -> None:
        log.info("run %s: %s", self._run_id, pause.sentence)
        self._on_wait(pause)
        try:
            await asyncio.sleep(pause.until - monotonic())
        finally:
            self._on_wait(None)

    def _settings(self) -> ModelSettings:
        spec, options = self.plan.connection.spec, self.plan.options
        most = options.max_tokens
        if most is None and spec.dialect == "messages":  # the only dialect that requires it
            most = spec.usual_output_tokens
        usual = cast(Mapping[str, Any], self.plan.connection.settings(options.reasoning))
        chosen = {
            "temperature": options.temperature if spec.temperature else None,
            "top_p": options.top_p if spec.temperature else None,
            "max_tokens": most,
            "seed": options.seed,
            "stop_sequences": [options.stop] if isinstance(options.stop, str) else options.stop,
            "timeout": options.timeout,
            "extra_body": options.extra_body and {**usual.get("extra_body", {}), **options.extra_body},
            "extra_headers": options.headers and {**usual.get("extra_headers", {}), **options.headers},
        }
        if options.cache is not None:
            chosen["anthropic_cache" if spec.dialect == "messages" else "cache"] = options.cache
        given = {name: value for name, value in chosen.items() if value is not None}
        return cast(ModelSettings, {**usual, **given, **self.plan.settings})


_CALL_AS_TEXT = re.compile(
    r"<tool_call>|<tools?>\s*\{|<function(?:_call|_calls|s)?[=>]|\[TOOL_CALLS?\]|<\|python_tag\|>|<\|tool_call|<\uff5ctool"
    r"|<minimax:tool_call>|<invoke name=|functools\[|<\|channel\|>commentary to="
)
"""The beginnings of tool calls in the formats of models. A server with the right parser leaves none in the text."""


def _reported_searches(event: ModelResponseStreamEvent) -> int:
    """Return how many searches of the provider an event reports. The queries of a call are known at its end."""
    match event:
        case PartStartEvent(part=NativeToolCallPart()):
            return 1
        case PartEndEvent(part=NativeToolCallPart() as call):
            return max(0, len(searched_queries(call)) - 1)
        case _:
            return 0


def _calls_as_text(response: ModelResponse, tools: Collection[str]) -> bool:
    """Return True if the response calls one of the tools in its text, outside of code, and none otherwise."""
    if any(isinstance(part, ToolCallPart) for part in response.parts):
        return False
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    if not text.strip():
        text = "".join(part.content for part in response.parts if isinstance(part, ThinkingPart))
    found = _CALL_AS_TEXT.search(text)
    if found is None or text.count("```", 0, found.start()) % 2 or text[: found.start()].endswith("`"):
        return False
    return any(re.search(rf"\b{re.escape(name)}\b", text[found.start() :]) for name in tools)


def _explain_call_as_text(spec: ModelSpec) -> str:
    sentence = _("The model wrote the call of a tool as text, so no tool was called.")
    if spec.provider not in ("vllm", "llama.cpp"):
        return sentence
    flags = f"--enable-auto-tool-choice --tool-call-parser {family(spec.name).tool_parser or '...'}"
    return joined([sentence, _("The model server needs its flags for tool calls (vLLM: {flags}).", flags=flags)])


def _without_truncated_calls(response: ModelResponse) -> ModelResponse:
    """Return the response without the calls whose arguments the length limit has cut."""
    if response.finish_reason != "length":
        return response
    cut = [part for part in response.parts if isinstance(part, ToolCallPart) and "INVALID_JSON" in part.args_as_dict()]
    return replace(response, parts=[part for part in response.parts if part not in cut]) if cut else response


def _valid_parts(
    response: ModelResponse, messages: Sequence[ModelMessage], names: Collection[str]
) -> list[ModelResponsePart]:
    """Return the response's parts. Each call is there once, with an id that no other call has, and is mended."""
    used = {part.tool_call_id for message in messages for part in message.parts if isinstance(part, ToolCallPart)}
    sent: set[tuple[str, str, str]] = set()
    parts: list[ModelResponsePart] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart):
            part = replace(part, tool_name=_tool_name(part.tool_name, names), args=_arguments(part.args))
            if (call := (part.tool_call_id, part.tool_name, part.args_as_json_str())) in sent and call[0]:
                continue
            sent.add(call)
            if not part.tool_call_id or part.tool_call_id in used:
                part = replace(part, tool_call_id=f"call_{uuid4().hex[:12]}")
            used.add(part.tool_call_id)
        parts.append(part)
    return parts


def _tool_name(name: str, names: Collection[str]) -> str:
    """Return the name without what models add, if the rest is a tool's name: space, quotes, marks, prefix, number."""
    bare = name.partition("<|")[0].strip(" \t\r\n\"'`")
    found = re.fullmatch(r"(?:\w+[.:/])?(.+?)(?::\d+)?", bare)
    candidates = (name, bare, found[1] if found else bare)
    return next((one for one in candidates if one in names), bare)


def _arguments(args: Any) -> Any:
    """Return the arguments of a call. "null" stands for none. A text, a list or a code block can hold their JSON."""
    if not isinstance(args, str):
        return args
    if (block := args.strip()).startswith("```"):
        args = block.strip("`").removeprefix("json").strip()
    try:
        value = json.loads(args)
        inner = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return _first_object(args.strip())
    items = cast(list[object], value) if isinstance(value, list) else []
    if len(items) == 1 and isinstance(items[0], dict):
        return json.dumps(items[0])
    return "{}" if inner is None else value if isinstance(value, str) and isinstance(inner, dict) else args


def _first_object(args: str) -> str:
    """Return the object that the text begins with, if only brackets or the same object again follow it."""
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(args)
    except (ValueError, RecursionError):
        return args
    first, rest = args[:end], args[end:].strip(" \t\r\n}]")
    return first if isinstance(value, dict) and rest in ("", first.rstrip("}")) else args


def _broke_off(response: ModelResponse) -> bool:
    """Return True if the stream ended without a finish reason. A reason unknown to the library counts as a reason."""
    raw = (response.provider_details or {}).get("finish_reason")
    return response.finish_reason == "error" or (response.finish_reason is None and raw in (None, "abort", "error"))
