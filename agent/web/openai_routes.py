"""The routes below `/v1`: the models of this page through OpenAI's Chat Completions API. `docs/http.md` describes them.

A request of a caller is one request to the model. Nothing of it is stored, and the caller runs its tools itself.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from itertools import groupby
from math import ceil
from time import time
from typing import Any, TypeGuard, cast
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic_ai.messages import BinaryContent, FileUrl, ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.settings import ModelSettings
from starlette.requests import ClientDisconnect

from agent.errors import AgentError, InputError, Limited, ProviderError, UnknownModel
from agent.events import Observers
from agent.limits import explain_limit
from agent.local.zero_gpu import visitor_token
from agent.messages.adapt import check_prompt, content_items
from agent.messages.prompt import to_messages
from agent.models.catalog import ModelSpec
from agent.plain_text import off_loop
from agent.responses import Piece, pieces_of
from agent.result import Options, RunPlan, checked_options, max_temperature
from agent.runtime.model_request import ModelRequests
from agent.runtime.usage import UsageMeter
from agent.settings import Settings
from agent.suspension.seals import Seals
from agent.system.threads import TEXTS
from agent.tools.function_tools import Tool, tools_by_name
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.permit import max_answer_tokens, run_limits
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.visitor import Visitor
from agent.web.conversation_routes import NO_STORE, status_of
from agent.web.heavy_work import HeavyResponse, RequestLimit, RequestSlot, TooManyRequests, result_unless_gone
from agent.web.message_routes import SIGN_SECONDS
from agent.web.middleware.requests import MAX_BODY, SENTENCES, EventBodies, RequestRefused
from agent.web.sending import visitor_of

log = logging.getLogger(__name__)

MAX_NODES = 200_000
"""The most strings, arrays, objects and commas in a body: long conversations with many tools."""
MAX_MESSAGES = 10_000
"""The most messages in a request. No step of their preparation holds the loop then."""
BODIES, BODIES_OF_PUBLIC_PAGE = 256, 32
"""The most bodies above `MAX_SMALL_BODY` that are read at once, because they are in memory."""
CODES = {
    **{"unknown_model": "model_not_found", "context": "context_length_exceeded", "refusal": "content_filter"},
    **{"quota": "insufficient_quota", "rate_limit": "rate_limit_exceeded"},
}
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
PASSED_ON: Mapping[str, Any] = {
    **{"top_p": int | float, "presence_penalty": int | float, "frequency_penalty": int | float},
    **{"seed": int, "parallel_tool_calls": bool},
}
"""The fields that go to the model unchanged, with their types."""
NOT_SUPPORTED: Mapping[str, Sequence[Any]] = {
    "n": (1,),
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
}
"""Fields that would change the answer, with the values that change nothing. Other unknown fields are ignored."""

_FIELDS = {"output_text": "content", "reasoning": "reasoning_content"}

Handler = Callable[[Request], Awaitable[Response]]


class _Refused(AgentError):
    """A request is refused with this status and OpenAI's `code`."""

    def __init__(self, status: int, sentence: str, code: str | None = None) -> None:
        super().__init__(sentence)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The wishes in the body of a request."""

    model: str
    messages: list[ModelMessage] = field(repr=False)
    tools: Sequence[Tool]
    options: Options
    settings: ModelSettings
    is_streamed: bool
    wants_usage: bool


class OpenAIRoutes:
    """The routes. `owner_of` returns the owner that a request speaks for, "" for a program without a cookie."""

    def __init__(
        self, models: ModelMenu, rate_limiter: RateLimiter, settings: Settings, owner_of: Callable[[Request], str]
    ) -> None:
        self._models, self._rate_limiter, self._settings, self._owner_of = models, rate_limiter, settings, owner_of
        is_public = settings.public is not None
        self._bodies = EventBodies(
            RequestLimit() if is_public else None,
            most_bytes=settings.max_upload_bytes * 4 // 3 + MAX_BODY,  # of pictures as data URLs
            most_nodes=MAX_NODES,
            at_once=BODIES_OF_PUBLIC_PAGE if is_public else BODIES,
        )

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        for path, method, handler in (
            ("/v1/models", "GET", self._list),
            ("/v1/chat/completions", "POST", self._complete),
        ):
            app.add_api_route(path, self._answering(handler), methods=[method])

    def _answering(self, handler: Handler) -> Handler:
        """Return a route that answers with the response of the handler, or with its error in OpenAI's form."""

        async def answer(request: Request) -> Response:
            try:
                self._check_access(request)
                return await handler(request)
            except Exception as error:
                return _error_response(error)

        return answer

    def _check_access(self, request: Request) -> None:
        """Raise `_Refused` if the routes are off, or without the owner's key."""
        settings = self._settings
        if settings.public and not settings.public.api:
            raise _Refused(404, "This page answers no programs here. Its owner can allow it: [public] api = true.")
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if settings.api_key and not compare_digest(given.encode(), settings.api_key.encode()):
            raise _Refused(401, "Send the API key of this page: Authorization: Bearer ...", "invalid_api_key")

    # The list of models

    async def _list(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [*map(_listed, self._usable(request))]})

    def _usable(self, request: Request) -> list[ModelSpec]:
        """Return the models that this caller can use now."""
        owner = self._owner_of(request)
        return [one for one in self._models.specs() if not self._models.key_missing(owner, one)]

    # An answer

    async def _complete(self, request: Request) -> Response:
        visitor = visitor_of(request, self._owner_of(request))
        async with self._bodies.read(request.scope, request.receive, visitor.owner or None) as body:
            pass
        asked = await TEXTS.run(_read, body)
        answer = _Completion(asked)
        task = answer.begin(self._ask(visitor, asked, answer))
        try:
            await result_unless_gone(request, answer.wait(SIGN_SECONDS) if asked.is_streamed else _ended(task))
        except ClientDisconnect:
            task.cancel()
            raise _Refused(499, "The caller has gone.") from None
        except BaseException:
            task.cancel()
            raise
        if task.done() and (not asked.is_streamed or task.exception()):
            return JSONResponse(answer.whole(task.result()), headers=NO_STORE)
        return HeavyResponse(answer.chunks(task), RequestSlot(task.cancel), NO_STORE, "text/event-stream")

    async def _ask(self, visitor: Visitor, asked: _Asked, answer: "_Completion") -> ModelResponse:
        """Return the model's answer to one request. Raises an `AgentError`."""
        is_public = self._settings.public is not None
        with self._rate_limiter.reserve_answer(visitor) as reservation:
            connection, is_own = await self._models.connect(visitor.owner, asked.model)
            try:
                spec, given = connection.spec, asked.options
                connection.check()
                await off_loop(asked.messages, check_prompt, asked.messages, spec)
                if asked.tools and spec.tools == "none":
                    raise InputError(f"{spec.label} cannot call tools.")
                answer.model = spec.id
                plan = RunPlan(
                    connection=connection,
                    system_message="",
                    tools={},
                    toolsets=(),
                    limits=run_limits(self._settings),
                    options=replace(
                        given,
                        reasoning=given.reasoning if spec.reasoning else None,
                        temperature=None
                        if given.temperature is None
                        else min(given.temperature, max_temperature(spec)),
                        max_tokens=max_answer_tokens(spec, given.max_tokens, public=is_public),
                    ),
                    seals=Seals(),
                    settings=asked.settings,
                )
                requests = ModelRequests(
                    answer.id, plan, UsageMeter(), answer.emit, lambda _: None, lambda _: None, Observers(), []
                )
                try:
                    visitor_token.set(visitor.gpu_token)
                    reservation.count_for_all()  # the model's work costs, however it ends
                    async with asyncio.timeout(plan.limits.seconds):
                        return await requests.request(asked.messages, asked.tools)
                except TimeoutError:
                    raise _Refused(504, explain_limit("time", plan.limits)) from None
            finally:
                if is_own:
                    await self._models.close(connection, visitor.owner)


class _Completion:
    """One answer on its way. Its task ends with the answer, or when the caller has gone."""

    def __init__(self, asked: _Asked) -> None:
        self.id, self.model, self._created = f"chatcmpl-{uuid4().hex}", asked.model, int(time())
        self._asked = asked
        self._pieces = list[Piece]()
        self._news = asyncio.Event()

    def begin(self, work: Coroutine[Any, Any, ModelResponse]) -> asyncio.Task[ModelResponse]:
        """Begin the work, which calls `emit`, and return its task."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_end)
        return task

    def emit(self, piece: Piece) -> None:
        """Take the next piece of text or reasoning."""
        self._pieces.append(piece)
        self._news.set()

    def _note_end(self, task: asyncio.Task[ModelResponse]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio logs an error that nobody has seen, also if the caller has gone
        self._news.set()

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for news: the next piece, or the end. Return True if there are some."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        return self._news.is_set()

    async def chunks(self, task: asyncio.Task[ModelResponse]) -> AsyncGenerator[str]:
        """Yield the answer as events, and comments while nothing comes, because proxies cut silent connections.

        What came while the caller did not read becomes one chunk.
        """
        yield self._chunk({"role": "assistant", "content": ""})
        while not task.done() or self._pieces:
            self._news.clear()
            pieces, self._pieces = self._pieces, []
            for kind, group in groupby(pieces, key=lambda piece: piece[0]):
                yield self._chunk({_FIELDS[kind]: "".join(str(text) for _, text in group)})
            if not pieces and not task.done() and not await self.wait(SIGN_SECONDS):
                yield ": the model has not answered yet\n\n"
        try:
            response = await task
        except Exception as error:
            yield _event(_error(error)[1])
            return
        if calls := _calls(response):
            yield self._chunk({"tool_calls": [{"index": at} | call for at, call in enumerate(calls)]})
        yield self._chunk({}, _finish_reason(response))
        if self._asked.wants_usage:
            yield _event(self._head("chat.completion.chunk") | {"choices": [], "usage": _usage(response)})
        yield "data: [DONE]\n\n"

    def whole(self, response: ModelResponse) -> dict[str, Any]:
        """Return the answer in one object."""
        texts = dict[str, str]()
        for kind, content in pieces_of(response):
            if kind in _FIELDS:
                texts[_FIELDS[kind]] = texts.get(_FIELDS[kind], "") + str(content)
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None} | texts
        if calls := _calls(response):
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(response)}
        return self._head("chat.completion") | {"choices": [choice], "usage": _usage(response)}

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event(self._head("chat.completion.chunk") | {"choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self.model}


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])


# --- in ---------------------------------------------------------------------------------------------------------------


def _read(body: Mapping[str, Any]) -> _Asked:
    """Return what the body asks for. Raises `InputError` and `_Refused`."""
    for name, harmless in NOT_SUPPORTED.items():
        if body.get(name) is not None and body[name] not in harmless:
            raise _Refused(400, f"{name} is not supported here.", "unsupported_parameter")
    model, given = body.get("model") or "", body.get("messages")
    if not isinstance(model, str):
        raise InputError("model must be the id of a model. GET /v1/models lists them.")
    if not _is_list_of_objects(given):
        raise InputError('messages must be a list of messages: [{"role": "user", "content": "..."}].')
    if len(given) > MAX_MESSAGES:
        raise InputError(
            f"There are {len(given)} messages, and at most {MAX_MESSAGES} can be sent. Leave out old ones."
        )
    messages = to_messages(given)
    _check_contents(messages)
    tools = tools_by_name(_tools(body.get("tools")))
    most = body.get("max_completion_tokens")
    most = body.get("max_tokens") if most is None else most
    options = {"temperature": body.get("temperature"), "max_tokens": most, "reasoning": body.get("reasoning_effort")}
    extra = body.get("stream_options")
    return _Asked(
        model=model,
        messages=messages,
        tools=tuple(tools.values()),
        options=checked_options(options),
        settings=_settings(body, tools),
        is_streamed=body.get("stream") is True,
        wants_usage=isinstance(extra, dict) and cast(dict[str, Any], extra).get("include_usage") is True,
    )


def _is_list_of_objects(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(one, dict) for one in cast(list[object], value))


def _check_contents(messages: Sequence[ModelMessage]) -> None:
    """Raise `InputError` for contents other than text, and pictures, sounds and videos in the request itself."""
    for item in (item for message in messages for item in content_items(message)):
        if isinstance(item, FileUrl):
            raise InputError("Send pictures as data URLs, because this server fetches nothing for programs.")
        if isinstance(item, BinaryContent) and not (item.is_image or item.is_audio or item.is_video):
            raise InputError("A message can have text, pictures, sound and video. Send the text of a file instead.")


def _tools(given: object) -> list[Tool]:
    tools = list[Tool]()
    for one in given if _is_list_of_objects(given) else [] if given is None else [{}]:
        function: object = one.get("function")
        named = cast(dict[str, Any], function) if isinstance(function, dict) else {}
        schema: Any = named.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(named.get("name"), str) or not isinstance(schema, dict):
            raise InputError('A tool has the form {"type": "function", "function": {"name": "...", "parameters": {}}}.')
        description = str(named.get("description") or "")
        tools.append(Tool(_left_to_caller, named["name"], schema=cast(dict[str, Any], schema), description=description))
    return tools


async def _left_to_caller(**_: object) -> None:
    """Stand for a function of the caller, which runs its tools itself."""


def _settings(body: Mapping[str, Any], tools: Collection[str]) -> ModelSettings:
    """Return the other settings of the request, in the words of the library. Raises `InputError`."""
    settings = dict[str, Any]()
    for name, kind in PASSED_ON.items():
        value = body.get(name)
        if value is not None:
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise InputError(f"{name} cannot be {str(value)[:80]!r}.")
            settings[name] = value
    stop: Any = body.get("stop")
    if stop is not None:
        settings["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        if not isinstance(stop, str | list) or not all(isinstance(one, str) for one in settings["stop_sequences"]):
            raise InputError("stop must be a text or a list of texts.")
    match body.get("tool_choice"):
        case None | "auto":
            pass
        case "none" | "required" as choice if tools:
            settings["tool_choice"] = choice
        case {"type": "function", "function": {"name": str(name)}} if name in tools:
            settings["tool_choice"] = [name]
        case _:
            raise InputError("tool_choice must be none, auto, required or one of the tools.")
    return cast(ModelSettings, settings)


# --- out --------------------------------------------------------------------------------------------------------------


def _listed(spec: ModelSpec) -> dict[str, Any]:
    """Return a model as OpenAI lists it, with what OpenRouter tells about its models."""
    inputs = ["text", *(kind for kind in ("image", "audio", "video") if getattr(spec, kind))]
    able = [*(["tools"] if spec.tools != "none" else []), *(["reasoning"] if spec.reasoning else [])]
    return {
        "id": spec.id,
        "object": "model",
        "created": 0,
        "owned_by": spec.provider,
        "context_length": spec.context_tokens,
        "architecture": {"input_modalities": inputs, "output_modalities": ["text"]},
        "supported_parameters": able,
    }


def _calls(response: ModelResponse) -> list[dict[str, Any]]:
    return [
        {
            "id": part.tool_call_id,
            "type": "function",
            "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
        }
        for part in response.parts
        if isinstance(part, ToolCallPart)
    ]


def _finish_reason(response: ModelResponse) -> str:
    if any(isinstance(part, ToolCallPart) for part in response.parts):
        return "tool_calls"
    reason = response.finish_reason
    return reason if reason in ("length", "content_filter") else "stop"


def _usage(response: ModelResponse) -> dict[str, Any] | None:
    """Return the tokens that the model's server counted, or None if it counted none."""
    used = response.usage
    if not used.input_tokens and not used.output_tokens:
        return None
    return {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.input_tokens + used.output_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": used.details.get("reasoning_tokens", 0)},
    }


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _error_response(error: Exception) -> Response:
    status, body = _error(error)
    pause = error.seconds if isinstance(error, TooManyRequests) else getattr(error, "retry_after", None)
    headers = {"retry-after": str(ceil(pause))} if pause else {}
    return JSONResponse(body, status_code=status, headers=NO_STORE | headers)


def _error(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body for an error, in OpenAI's form."""
    code: str | None = None
    match error:
        case _Refused():
            status, code = error.status, error.code
        case RequestRefused():
            status = error.status
        case ProviderError():
            status, code = status_of(error), CODES.get(error.kind)
        case UnknownModel():
            status, code = 404, "model_not_found"
        case Limited():
            status, code = 429, "rate_limit_exceeded"
        case AgentError():
            status = status_of(error)
        case _:
            log.error("an answer to a program broke", exc_info=error)
            status = 500
    message = str(error) if isinstance(error, AgentError) else SENTENCES.get(status, SENTENCES[500])
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return status, {"error": {"message": message, "type": kind, "param": None, "code": code}}
