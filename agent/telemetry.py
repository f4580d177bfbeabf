"""OpenTelemetry by the GenAI conventions: a span for the run, each model request and each tool call.

Uses only the API: the program's own tracer provider decides where the spans go. Off unless enabled.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

from opentelemetry import context as contexts
from opentelemetry.context import Context as OtelContext
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import (
    NoOpTracerProvider,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    TracerProvider,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_core import to_json

from agent.errors import ConfigError
from agent.events import (
    AttemptFailed,
    ChildEvent,
    Event,
    HandedOver,
    Observer,
    ProviderEvent,
    ResponseEmitted,
    RunCancelled,
    RunEnded,
    RunStarted,
    StateSnapshot,
    StepEnded,
    StepStarted,
    ToolCallEnded,
    ToolCallStarted,
    ToolOutput,
    UserInputRequested,
)
from agent.keyword_arguments import explains_fields
from agent.models.catalog import load_catalog
from agent.providers.connection import Connection
from agent.providers.errors import HIDDEN, redact
from agent.result import RunResult

SWITCH = "SWITCHBOARD_TELEMETRY"
"""The environment variable: "on", or "content" for spans that also contain the messages."""

Attributes = dict[str, AttributeValue]


@explains_fields
@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """Creates spans for an agent's runs: `Agent(..., telemetry=Telemetry())`.

    `content` also records prompts, answers, arguments and results, without keys and without the bytes of media.
    `agent_name` is the agent's name in the spans. `provider` is the tracer provider, None for the program's own.
    """

    content: bool = False
    agent_name: str = ""
    provider: TracerProvider | None = field(default=None, repr=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Telemetry | None":
        """Return the telemetry that `SWITCHBOARD_TELEMETRY` sets: "on", "content", or none. Raises `ConfigError`."""
        match env.get(SWITCH, "").strip().lower():
            case "" | "0" | "off" | "false":
                return None
            case "1" | "on" | "true":
                return cls()
            case "content":
                return cls(content=True)
            case other:
                raise ConfigError(f"{SWITCH} must be on, content or off, not {other!r}")

    def __call__(self) -> Observer:
        """Return the observer of one run."""
        return _Spans(self, get_tracer("switchboard.agent", tracer_provider=self.provider))


class _Spans:
    """The open spans of one run. The usage of a run is the sum of its steps."""

    def __init__(self, telemetry: Telemetry, tracer: Tracer) -> None:
        self._telemetry, self._tracer = telemetry, tracer
        self._connection: Connection | None = None
        self._common: Attributes = {}
        self._server: Attributes = {}
        self._redactor = Redactor()
        self._run: Span | None = None
        self._inside = OtelContext()
        self._step: Span | None = None
        self._token: Any = None
        self._asked: float | None = None
        self._error = ""
        self._calls: dict[str, Span] = {}

    def on_event(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._run_began(event)
            case StepStarted():
                self._step_began(event)
            case ProviderEvent():
                if self._step is not None and self._asked is not None:
                    seconds = monotonic() - self._asked
                    self._step.set_attribute("gen_ai.response.time_to_first_chunk", seconds)
                    self._asked = None
            case AttemptFailed():
                if self._step is not None:
                    about: Attributes = {"error.type": event.failure.kind, "retry.seconds": event.pause.seconds}
                    self._step.add_event("gen_ai.request.retry", about)
            case StepEnded():
                self._step_ended(event)
            case ToolCallStarted():
                self._call_began(event.call)
            case ToolCallEnded():
                self._call_ended(event.result)
            case RunEnded():
                self._run_ended(event.result)
            case HandedOver():
                self._connection = event.plan.connection
                self._redactor = Redactor(self._redactor.known + Redactor.of(self._connection).known)
            case (
                ChildEvent()
                | ResponseEmitted()
                | StateSnapshot()
                | UserInputRequested()
                | ToolOutput()
                | RunCancelled()
            ):
                pass

    def _name_model(self) -> None:
        """Note who is asked now. Another model can stand in from one step to the next."""
        connection = self._connection
        assert connection is not None
        self._common |= {
            "gen_ai.provider.name": _PROVIDERS.get(connection.spec.provider, connection.spec.provider),
            "gen_ai.request.model": connection.spec.name,
        }
        url = urlsplit(getattr(getattr(connection, "endpoint", None), "base_url", ""))
        self._server = {"server.address": url.hostname or ""} if url.hostname else {}
        if url.hostname and (port := url.port or {"http": 80, "https": 443}.get(url.scheme)):
            self._server["server.port"] = port

    def _run_began(self, event: RunStarted) -> None:
        self._connection = event.plan.connection
        self._redactor = Redactor.of(self._connection)
        self._common = {"gen_ai.conversation.id": event.context.session_id}
        self._name_model()
        name = self._telemetry.agent_name
        own = {"gen_ai.agent.name": name} if name else {}
        self._run = self._tracer.start_span(
            f"invoke_agent {name}".strip(),
            attributes={"gen_ai.operation.name": "invoke_agent", "switchboard.run.id": event.run_id, **self._common}
            | own,
        )
        self._inside = set_span_in_context(self._run)
        self._content(self._run, "gen_ai.input.messages", event.prompt)
        if self._telemetry.content and event.plan.system_message:
            instructions = [{"type": "text", "content": event.plan.system_message}]
            self._run.set_attribute("gen_ai.system_instructions", self._json(instructions))

    def _step_began(self, event: StepStarted) -> None:
        self._name_model()
        asked = {name: event.settings.get(name) for name in ("temperature", "max_tokens", "top_p", "seed")}
        given: Attributes = {
            f"gen_ai.request.{name}": value for name, value in asked.items() if isinstance(value, int | float)
        }
        fixed: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.stream": True}
        self._step = self._tracer.start_span(
            f"chat {self._common['gen_ai.request.model']}",
            context=self._inside,
            kind=SpanKind.CLIENT,
            attributes=fixed | self._common | self._server | given,
        )
        self._content(self._step, "gen_ai.input.messages", event.messages)
        self._asked = monotonic()
        # Spans of the provider's HTTP client belong under the step.
        self._token = contexts.attach(set_span_in_context(self._step, self._inside))

    def _step_ended(self, event: StepEnded) -> None:
        if self._step is None:
            return
        contexts.detach(self._token)
        if event.response is not None:
            self._step.set_attributes(_of_response(event.response))
            self._content(self._step, "gen_ai.output.messages", [event.response])
        self._error = event.failure.kind if event.failure else ""
        if event.failure is not None:
            self._failed(self._step, self._error, str(event.failure))
        self._step.end()
        self._step = None

    def _call_began(self, call: ToolCallPart) -> None:
        span = self._tracer.start_span(
            f"execute_tool {call.tool_name}",
            context=self._inside,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.tool_name,
                "gen_ai.tool.call.id": call.tool_call_id,
                "gen_ai.tool.type": "function",
            },
        )
        if self._telemetry.content:
            span.set_attribute("gen_ai.tool.call.arguments", self._json(call.args_as_dict()))
        self._calls[call.tool_call_id] = span
        # For spans of the tool itself. The tool runs in its own task, and this context ends with the task.
        contexts.attach(set_span_in_context(span, self._inside))

    def _call_ended(self, result: ToolReturnPart) -> None:
        span = self._calls.pop(result.tool_call_id, None)
        if span is None:
            return
        span.set_attribute("switchboard.tool.outcome", result.outcome)
        if self._telemetry.content:
            span.set_attribute("gen_ai.tool.call.result", self._redactor.value(result.model_response_str()))
        if result.outcome == "failed":
            self._failed(span, "tool_error", result.model_response_str())
        span.end()

    def _run_ended(self, result: RunResult) -> None:
        if self._run is None:
            return
        # Not gen_ai.usage, which the steps have: adding up the spans of a trace would count each token twice.
        used: Attributes = {f"gen_ai.aggregated_usage.{name}": count for name, count in result.usage.items()}
        self._run.set_attributes({"gen_ai.response.finish_reasons": [result.finish_reason], **used})
        if result.cost is not None:
            self._run.set_attribute("operation.cost", result.cost)
        self._content(self._run, "gen_ai.output.messages", result.context.messages[-1:])
        if result.finish_reason in ("error", "limit"):
            self._failed(self._run, self._error or result.finish_reason, result.note.detail)
        for span in (*self._calls.values(), *([self._step] if self._step is not None else ())):
            span.end()
        self._run.end()

    def _failed(self, span: Span, kind: str, sentence: str) -> None:
        """Record the kind of failure. Its sentence can quote the conversation and is recorded only with `content`."""
        span.set_attribute("error.type", kind)
        span.set_status(StatusCode.ERROR, self._redactor.complaint(sentence) if self._telemetry.content else None)

    def _content(self, span: Span, name: str, messages: Sequence[ModelMessage]) -> None:
        if not self._telemetry.content or not messages:
            return
        span.set_attribute(name, self._json(_message_format().messages_to_otel_messages(list(messages))))

    def _json(self, value: Any) -> str:
        return to_json(self._redactor.value(value), fallback=str).decode()


def _of_response(response: ModelResponse) -> Attributes:
    usage = response.usage
    attributes: dict[str, AttributeValue | None] = {
        "gen_ai.response.model": response.model_name,
        "gen_ai.response.id": response.provider_response_id,
        "gen_ai.response.finish_reasons": [response.finish_reason] if response.finish_reason else None,
        "gen_ai.usage.input_tokens": usage.input_tokens or None,
        "gen_ai.usage.output_tokens": usage.output_tokens or None,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": usage.details.get("reasoning_tokens") or None,
    }
    return {name: value for name, value in attributes.items() if value is not None}


@cache
def _message_format() -> InstrumentationSettings:
    """Return the library's converter of messages. Its tracer and meter are not used."""
    return InstrumentationSettings(
        tracer_provider=NoOpTracerProvider(),
        meter_provider=NoOpMeterProvider(),
        include_binary_content=False,
        version=6,
    )


_PROVIDERS = {"google": "gcp.gemini", "xai": "x_ai"}
"""Names that the conventions define for a provider."""


_MEDIUM = {"data", "media_type", "kind", "identifier"}
_SECRETS = re.compile(
    r"""(?ix)
    (?P<header> (?: authorization | (?:x-)? (?:goog-)? api[-_]?key ) ["']? \s* [:=] \s* ["']? )
        (?: (?: bearer | basic ) \s+ )? [^\s"',&}]+
    | (?P<scheme> (?<![a-z]) (?: bearer | basic ) \s+ ) (?= [\w.~+/-]* [\d=] ) [\w.~+/=-]{6,}
    | (?P<query> [?&] [\w-]* (?: key | token | secret | signature ) = ) [^\s&"']+
    | (?P<login> (?<![a-z]) [a-z]{2,12} :// ) [^\s/@:]+ : [^\s/@]+ (?= @ )
    | (?<![a-z0-9]) (?: sk | pk | rk | hf | gsk | xai | ghp | xoxb ) [-_] [\w.-]{8,}
    | (?<![a-z0-9]) (?: AIza [\w-]{20,} | AKIA [A-Z0-9]{12,} | ya29\. [\w-]{8,} | eyJ [\w-]{8,600}+ \. [\w.-]{8,} )
    """
)
"""Matches text that is certainly a key, and leaves prose, code and markdown unchanged.

`redact` also hides long and starred words, which is right only for a vendor's error message.
"""
_SECRET_NAME = re.compile(r"(?i)(?:^|[-_.])(?:authorization|password|passwd|secret|token|api[-_]?key)$")


@dataclass(frozen=True, slots=True)
class Redactor:
    """Removes keys from what is recorded: text that looks like a key, and `known` keys of any form."""

    known: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, connection: Connection, env: Mapping[str, str] = os.environ) -> "Redactor":
        """Return a redactor that knows the keys of the connection, also of stand-ins, and those in the environment."""
        all_: Sequence[Connection] = getattr(connection, "connections", (connection,))
        own = {getattr(getattr(one, "endpoint", None), "api_key", None) for one in all_}
        names = {name for provider in load_catalog().providers.values() for name in provider.key_names}
        keys = {*own, *(env.get(name, "").strip() for name in names)}
        return cls(tuple(sorted((key for key in keys if key and len(key) > 3), key=len, reverse=True)))

    def text(self, text: str) -> str:
        """Return a text of people, models or tools without keys."""
        for key in self.known:
            text = text.replace(key, HIDDEN)
        return _SECRETS.sub(_hide, text)

    def complaint(self, text: str) -> str:
        """Return a vendor's text without anything that can be a key."""
        return redact(self.text(text))

    def value(self, value: Any) -> Any:
        """Return a JSON value with all strings and names redacted. The bytes of images and audio are not changed.

        A string that contains JSON, such as arguments and results, is redacted as JSON.
        """
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, list | tuple):
            return [self.value(item) for item in cast(list[Any], value)]
        if isinstance(value, dict):
            table = cast(dict[str, Any], value)
            medium = table.get("kind") == "binary" and table.keys() >= _MEDIUM
            return {
                self.text(str(name)): item if medium and name == "data" else self._field_value(str(name), item)
                for name, item in table.items()
            }
        return value

    def _string(self, text: str) -> str:
        if text.lstrip()[:1] in ("{", "["):
            try:
                inner = json.loads(text)
                if (cleaned := self.value(inner)) != inner:
                    return json.dumps(cleaned, ensure_ascii=False)
            except (ValueError, RecursionError):
                return self.text(text)
            return text
        return self.text(text)

    def _field_value(self, name: str, value: Any) -> Any:
        return HIDDEN if isinstance(value, str) and value and _SECRET_NAME.search(name) else self.value(value)


def _hide(found: re.Match[str]) -> str:
    return f"{found['header'] or found['scheme'] or found['query'] or found['login'] or ''}{HIDDEN}"
