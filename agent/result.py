"""The inputs, the outcome and the result of a run as values, and the journal that it writes to."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypedDict,
    cast,
    get_args,
    get_type_hints,
)

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic_ai.messages import (
    BinaryContent,
    Citation,
    FilePart,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolReturnPart,
)
from pydantic_ai.settings import ModelSettings
from typing_extensions import TypeVar

from agent.citations import dropped_citations, in_joined_text
from agent.context import Context
from agent.errors import AgentError, InputError
from agent.files.long_documents import LongDocument
from agent.files.ranking import Vectors
from agent.history import Note
from agent.i18n.text import LocalizedText, _, joined
from agent.keyword_arguments import ExplainsAttributes, explains_fields, meant_by, shown
from agent.limits import Limit, Limits, explain_filter, explain_limit
from agent.messages.compaction import Compaction
from agent.messages.openai import to_openai
from agent.models.catalog import Dialect, ModelSpec
from agent.output import OutputType
from agent.providers.connection import Connection, Effort, ModelChoice, Reasoning, effort_note
from agent.providers.stand_ins import StandIns
from agent.responses import PART_SEPARATOR, fix_surrogates, is_blank
from agent.suspension.seals import Seals
from agent.suspension.suspended_run import Pending
from agent.tools.function_tools import Function, Tool, Toolset

FinishReason = Literal["stop", "length", "content_filter", "cancelled", "suspended", "limit", "error"]


OutputT = TypeVar("OutputT", covariant=True, default=object)
"""The type of a result's `output`."""

MAX_TEMPERATURE: Mapping[str, int] = {"messages": 1}
"""The highest temperature of each dialect that does not accept 2."""

MISSING_OPTIONS: Mapping[Dialect, tuple[str, Collection[str]]] = {
    "chat": ("The Chat Completions API", ()),
    "responses": ("OpenAI's Responses API", ("seed", "stop")),
    "messages": ("Anthropic's Messages API", ("seed",)),
    "generate": ("Google's Gemini API", ("extra_body", "cache")),
}
"""The name of each dialect, and the options that it does not have."""
CACHES = ("anthropic", "openai")
"""The providers whose prompt cache has a price, and an option."""


class Journal(Protocol):
    """Saves the messages of a run: each one when it is finished, the user's before any model request."""

    async def write(self, message: ModelMessage, note: Note) -> None:
        """Save the message and return when it is saved. Raises `HistoryError`, which ends the run."""
        ...


_KNOWN_VALUES: Mapping[str, str] = {
    "reasoning": f"True, False, None, {', '.join(get_args(Effort))}",
    "ignore_reasoning": "True, False",
    "temperature": "0 - {most}, None",
    "max_tokens": "1, 2, 3, ..., None",
    "top_p": "0 - 1, None",
    "seed": "0, 1, 2, ..., None",
    "stop": "a text, a list of texts, None",
    "timeout": "seconds above 0, None",
    "extra_body": "a dict with texts as keys, None",
    "cache": "True, False, None",
    "headers": "a dict of texts, None",
}


def _check_options(options: "Options", most: int = 2) -> None:
    """Raise `InputError` with the option and its known values. `most` is the highest temperature."""
    for one in fields(Options):
        name, value = one.name, getattr(options, one.name)
        try:
            if value is not one.default:
                _check_of(name).validate_python(value)
            if name == "temperature" and value is not None and value > most:
                raise ValueError("the model takes no such temperature")
        except ValueError:
            known = _KNOWN_VALUES[name].replace("{most}", str(most))
            said = f"this {type(value).__name__}" if name == "headers" else shown(value)  # headers can be secret
            raise InputError(
                _("{name} cannot be {value}. Known values: {known}.", name=name, value=said, known=known)
            ) from None


@cache
def _check_of(option: str) -> TypeAdapter[Any]:
    """Return what checks the values of an option. It is made at the first use, because few options are ever set."""
    hints = get_type_hints(Options, include_extras=True)
    return TypeAdapter(hints[option], config=ConfigDict(strict=True))


_Text = Annotated[str, Field(min_length=1)]
_HeaderName = Annotated[str, Field(pattern=r"^[\w!#$%&'*+.^`|~-]+$")]
_HeaderText = Annotated[str, Field(pattern="^[ -~]*$")]


@explains_fields
@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of one run. None means the model's default.

    `reasoning` is on, off, or an effort; `RunResult.effort` has the value that was sent. `ignore_reasoning` removes
    reasoning from the responses, but not from the conversation, because some providers need it again.

    `stop` are texts before which the answer ends. `timeout` is the longest silence of the server in seconds.
    `cache` turns the prompt cache of Anthropic or OpenAI on or off; None: on for Claude. A token that is written to it
    costs a quarter more than others, and one that is read a tenth. `extra_body` is added to the body of each request,
    and `headers` to its headers. What the model's API does not have is refused before any request, as in 'OpenAI's
    Responses API has no "seed"'.
    """

    reasoning: Reasoning | None = None
    ignore_reasoning: bool = False
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    stop: _Text | Annotated[Sequence[_Text], Field(min_length=1)] | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    cache: bool | None = None
    extra_body: Mapping[str, Any] | None = None
    headers: Mapping[_HeaderName, _HeaderText] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_options(self)


DEFAULTS = Options()
_OTHERS = ("options", "journal", "model", "tools")
"""The other keyword options of a run."""


class RunOptions(TypedDict, total=False):
    """The keyword options of `Agent.run`, which `Agent.ask`, `Chat` and `stream_to_display` take, too.

    `options` holds values for the fields of `Options`. These fields can also be given by themselves, as in
    `run(..., reasoning=True)`, which overrides `options`. `journal` saves the messages. `model` and `tools` count
    instead of those of the agent. A name in `model` is connected once, and closed with the agent.
    """

    reasoning: Reasoning | None
    ignore_reasoning: bool
    temperature: float | None
    max_tokens: int | None
    top_p: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    timeout: float | None
    cache: bool | None
    extra_body: Mapping[str, Any] | None
    headers: Mapping[str, str] | None
    options: Options | None
    journal: Journal | None
    model: ModelChoice | None
    tools: Sequence[Tool | Function | Toolset | str] | None


def checked_options(given: Mapping[str, Any], base: Options = DEFAULTS, spec: ModelSpec | None = None) -> Options:
    """Return `base` with these options after checking each. Raises `InputError` with the option and its known values.

    Nothing is converted: "false" is not a bool, and True is not a number.
    """
    known = [field.name for field in fields(Options)]
    if unknown := next((name for name in given if name not in known), None):
        listed = _("There is no option {name}. Known options: {known}.", name=repr(unknown), known=", ".join(known))
        settings = [name for name in known if name != "headers"]  # a key, for example, is meant for no header
        raise InputError(joined([*meant_by(unknown, settings, (*_OTHERS, "context", "headers")), listed]))
    options = replace(base, **given)
    if spec is not None:
        _check_options(options, max_temperature(spec))
        dialect, missing = MISSING_OPTIONS[spec.dialect]
        if absent := next((name for name in missing if getattr(options, name) is not None), None):
            raise InputError(f'{dialect} has no "{absent}"')
        if options.cache is not None and spec.provider not in CACHES:
            raise InputError(f'{spec.provider} has no "cache" that a request can turn on or off')
    return options


def shared_options(given: Mapping[str, Any], base: Options, specs: Sequence[ModelSpec]) -> Options:
    """Return the options of a run that any of these models can answer. Raises as `checked_options` does for each.

    Also refuses `headers` and `extra_body` if they would reach another provider than the one that they are meant for.
    """
    options, *_others = [checked_options(given, base, spec) for spec in specs]
    if len(providers := dict.fromkeys(spec.provider for spec in specs)) > 1:
        for name in ("headers", "extra_body"):
            if getattr(options, name) is not None:
                raise InputError(f"{name} belongs to one provider, and this run can ask {', '.join(providers)}")
    return options


def max_temperature(spec: ModelSpec) -> int:
    """Return the highest temperature that the model accepts."""
    return MAX_TEMPERATURE.get(spec.dialect, 2) if spec.temperature else 2


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The immutable configuration of a run. A run opens the `toolsets` and uses their tools in addition to `tools`.

    `prepare` converts the prompt before anything is stored or sent, for example by fetching pictures. If it raises
    `InputError`, the run leaves no trace. `documents` are those that are too long for the model; None: look for them in
    the messages. With `has_search`, the provider can search the web for the model; `count_search`, if given, counts a
    search while it is entered, or raises `Limited`. `settings` are further settings of each request, in the library's
    words. `output` is the type of the answer. `compaction` makes long histories fit.
    `write` asks the model in a run below: it gets the instructions, the text, the call or run that asks, and the most
    tokens of the answer.
    """

    connection: Connection
    system_message: str
    tools: Mapping[str, Tool]
    toolsets: tuple[Toolset, ...]
    limits: Limits
    options: Options
    seals: Seals
    prepare: Callable[[list[ModelMessage]], Awaitable[list[ModelMessage]]] | None = None
    documents: Sequence[LongDocument] | None = None
    vectors: Vectors | None = None
    has_search: bool = False
    count_search: Callable[[], AbstractContextManager[object]] | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    output: OutputType | None = None
    compaction: Compaction | None = None
    write: Callable[[str, str, Any, int | None], Awaitable[str]] | None = None

    @property
    def effort(self) -> Reasoning | None:
        """The reasoning effort that is sent in requests; see `RunResult`."""
        return self.connection.effort(self.options.reasoning)

    @property
    def stood_in(self) -> tuple[str, ...]:
        """Sentences about models that were not available, and about those that stand in for them."""
        return tuple(self.connection.notes) if isinstance(self.connection, StandIns) else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about stand-ins, about a retired model, and about options that the model does not support."""
        spec = self.connection.spec
        notes = [effort_note(self.options.reasoning, self.effort, spec)]
        for name in ("temperature", "top_p"):
            if getattr(self.options, name) is not None and not spec.temperature:
                notes.append(f"The {name} of {spec.label} cannot be set; it was asked without.")
        return tuple(filter(None, [*self.stood_in, *notes, spec.advice(datetime.now(UTC).date())]))


@dataclass(frozen=True, kw_only=True)
class RunResult(ExplainsAttributes, Generic[OutputT]):
    """The result of a run. `note` has its figures and, if the run ended early, the sentence that says why.

    `files` come from the model or from tools. `charts` are the pictures of tools, by the tool's name: "plot", "plot-2"
    and so on. A suspended run has `pending` questions or approvals, and `suspension` is the text for `Agent.resume`. A
    new run can also continue from `context` without resuming.

    `effort` is the reasoning effort that the requests asked for, as in `Options.reasoning`; None: they did not set it.
    `notes` are sentences about options or content that the model did not support, and about a model that is or will be
    retired, with its replacement. `failure` is the exception that ended the run, if any.

    `output` is the value of the answer, of the type that the run was given as `output`. It is None without such a type,
    and if the run ended without an answer that fits it.
    """

    finish_reason: FinishReason
    text: str
    context: Context
    note: Note
    files: tuple[BinaryContent, ...] = ()
    suspension: str | None = field(default=None, repr=False)
    pending: tuple[Pending, ...] = ()
    effort: Reasoning | None = None
    notes: tuple[str, ...] = ()
    system_message: str = field(default="", repr=False)
    failure: AgentError | None = field(default=None, repr=False, compare=False)
    output: OutputT | None = None
    charts: Mapping[str, BinaryContent] = field(default_factory=dict[str, BinaryContent])

    if not TYPE_CHECKING:

        def __getitem__(self, key: object) -> Any:
            raise TypeError(f"a result has fields, not items such as [{key!r}]: write result.text")

    @property
    def model(self) -> str:
        """The id of the model that answered, as in "openai:gpt-6-luna"; that of the last one asked if none did."""
        return self.note.model

    @property
    def failed(self) -> bool:
        """True if an error or a limit ended the run. A cancelled or suspended run has not failed."""
        return self.finish_reason in ("error", "limit")

    @property
    def why(self) -> str:
        """The sentence that says why the run failed; "" if it did not."""
        return self.note.detail if self.failed else ""

    def checked(self) -> Self:
        """Return this result, or raise its `AgentError` if the run failed, as in `(await agent.ask(...)).checked()`.

        The failure of a provider is raised as the original `ProviderError` with its `kind`. An answer that was cut
        before it fitted its `output` type counts as failed here.
        """
        if self.failed or self.failure:
            raise self.failure or AgentError(self.why)
        return self

    def __str__(self) -> str:
        """Return the text, and the reason if the run failed, so that printing a result always shows a failure."""
        return "\n".join(filter(None, [self.text, f"[{self.finish_reason}] {self.why}" if self.failed else ""]))

    def _repr_markdown_(self) -> str:
        """Return what a notebook shows of the result: reasoning folded, tools as rows, and how it ended."""
        from agent.rendering.notebook import answer_to_markdown

        return answer_to_markdown(self.context.messages, self.note.detail)

    @property
    def final_output(self) -> str:
        """The same as `text`."""
        return self.text

    @property
    def citations(self) -> list[Citation]:
        """The sources that the last answer cites. Their positions are those in `text`.

        They are also in `context`, with the positions in each part. Citations that point nowhere are left out.
        """
        answer = next((one for one in reversed(self.context.messages) if isinstance(one, ModelResponse)), None)
        parts = [part for part in answer.parts if isinstance(part, TextPart)] if answer else []
        return in_joined_text([part for part in parts if not is_blank(part.content)], PART_SEPARATOR)

    @property
    def dropped_citations(self) -> int:
        """The number of citations of the conversation that pointed nowhere and were left out."""
        return dropped_citations(self.context.messages)

    @property
    def cost(self) -> float | None:
        """US dollars for the whole run; None if the price or a part of the usage is unknown."""
        return self.note.cost

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the whole run. `note.timings.estimated` is True if they are an estimate.

        `cached_tokens` is there if some of the `input_tokens` were read from the provider's cache.
        """
        timings = self.note.timings
        assert timings is not None
        used = {"input_tokens": timings.input_tokens, "output_tokens": timings.output_tokens}
        return used | ({"cached_tokens": timings.cached_tokens} if timings.cached_tokens else {})

    def to_input_list(self) -> list[dict[str, Any]]:
        """Return the whole conversation in OpenAI's format with its tool calls. It can be passed in as a prompt."""
        return to_openai(self.context.messages, self.system_message)


def text_of_message(message: ModelMessage) -> str:
    """Return the text of a response, with its parts joined as in their bubble."""
    texts = [part.content for part in message.parts if isinstance(part, TextPart)]
    return PART_SEPARATOR.join(text for text in texts if not is_blank(text))


def files_of_messages(messages: Iterable[ModelMessage]) -> Iterator[BinaryContent]:
    """Yield the files that the model made or that tools returned."""
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, FilePart):
            yield part.content
        elif isinstance(part, ToolReturnPart):
            content: Any = part.content
            items = cast(list[Any], content) if isinstance(content, list) else [content]
            yield from (item for item in items if isinstance(item, BinaryContent))


def charts_of_messages(messages: Iterable[ModelMessage]) -> dict[str, BinaryContent]:
    """Return the pictures that tools returned, by the tool's name. From the second one, a number follows the name."""
    out, seen = dict[str, BinaryContent](), Counter[str]()
    for part in (part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)):
        for file in part.files:
            if isinstance(file, BinaryContent) and file.is_image:
                seen[part.tool_name] += 1
                number = seen[part.tool_name]
                out[part.tool_name if number == 1 else f"{part.tool_name}-{number}"] = file
    return out


class Outcome(NamedTuple):
    """The finish reason of a run and the sentence that explains it.

    `failure` is the exception that ended the run, if it has a sentence for people.
    """

    reason: FinishReason
    detail: str = ""
    failure: AgentError | None = None

    @classmethod
    def from_response(cls, response: ModelResponse, limits: Limits) -> "Outcome":
        """Return the outcome for the model's last response."""
        match response.finish_reason:
            case "content_filter":
                return cls("content_filter", explain_filter(response.provider_details or {}))
            case "length":
                return cls("length", explain_limit("truncated", limits))
            case _:
                return cls("stop")

    @classmethod
    def from_limit(cls, limit: Limit, limits: Limits) -> "Outcome":
        """Return the outcome for a limit that was reached."""
        return cls("limit", explain_limit(limit, limits))

    @classmethod
    def from_failure(cls, failure: AgentError) -> "Outcome":
        """Return the outcome for an exception with a sentence for people."""
        return cls("error", failure.text, failure)

    @classmethod
    def from_store_failure(cls, failure: BaseException | None) -> "Outcome":
        """Return the outcome of a run that could not be saved. `failure` None: only the log has the reason."""
        match failure:
            case None:
                reason = INTERNAL_ERROR.detail
            case AgentError():
                reason = failure.text
            case asyncio.CancelledError():
                reason = _("writing it was interrupted")
            case _:
                reason = _("the store failed")
        known = failure if isinstance(failure, AgentError) else None
        return cls("error", _("This answer could not be saved: {reason}", reason=reason), known)

    @classmethod
    def from_cancellation(cls, reason: str | None, left_running: Sequence[str]) -> "Outcome":
        """Return the outcome of a cancelled run, with the reason and the names of the tools that are left running."""
        left = (_("The tool {name} cannot be interrupted and was left running.", name=name) for name in left_running)
        return cls("cancelled", joined([_cancel_reason(reason), *left]))


INTERNAL_ERROR = Outcome("error", _("Something went wrong in this program; the details are in its log."))
NOT_SEALED = Outcome("error", _("What this run waits for cannot be kept, so it has ended."))
KNOWN_REASONS = {
    "user_request": _("Stopped."),
    "client_disconnect": _("Stopped after you left the page."),
    "reader_left": _("Stopped: the reader went away."),
    "shutdown": _("Stopped because the server was shut down."),
    "taken_over": _("Another server process goes on with this answer."),
}
"""The reasons for cancelling that have a sentence. Any other reason is shown as it was given."""
LONGEST_REASON = 200
"""The most characters of a reason that are shown."""


def _cancel_reason(reason: str | None) -> LocalizedText:
    """Return the reason as one line of limited length."""
    line = " ".join(fix_surrogates(str(reason or "")).split())
    if not line or line in KNOWN_REASONS:
        return KNOWN_REASONS[line or "user_request"]
    short = line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"
    return _("Stopped: {reason}.", reason=short.rstrip("."))
