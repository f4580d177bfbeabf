"""The inputs and the result of a run as values, and the journal that it writes to."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypedDict, cast, get_args

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
from agent.documents.long_documents import LongDocument
from agent.documents.vectors import Vectors
from agent.errors import AgentError, InputError
from agent.history import Note
from agent.i18n import _, joined
from agent.keyword_arguments import ExplainsAttributes, explains_fields, meant_by, shown
from agent.limits import Limits
from agent.messages.openai import to_openai
from agent.models.catalog import ModelSpec
from agent.output import OutputType
from agent.providers import Connection, Effort, Reasoning, effort_note, is_reasoning
from agent.responses import PART_SEPARATOR, is_blank
from agent.suspension import Pending
from agent.suspension.seals import Seals
from agent.tools import Tool, Toolset

FinishReason = Literal["stop", "length", "content_filter", "cancelled", "suspended", "limit", "error"]


OutputT = TypeVar("OutputT", covariant=True, default=object)
"""The type of a result's `output`."""

MAX_TEMPERATURE: Mapping[str, int] = {"messages": 1}
"""The highest temperature of each dialect that does not accept 2."""


class Journal(Protocol):
    """Saves the messages of a run: each one when it is finished, the user's before any model request."""

    async def write(self, message: ModelMessage, note: Note) -> None:
        """Save the message and return when it is saved. Raises `HistoryError`, which ends the run."""
        ...


def _check_options(options: "Options", most: int = 2) -> None:
    """Raise `InputError` with the option and its known values. `most` is the highest temperature."""
    values: dict[str, tuple[bool, str]] = {
        "reasoning": (
            options.reasoning is None or is_reasoning(options.reasoning),
            f"True, False, None, {', '.join(get_args(Effort))}",
        ),
        "ignore_reasoning": (isinstance(cast(object, options.ignore_reasoning), bool), "True, False"),
        "temperature": (
            options.temperature is None or (_is_number(options.temperature) and 0 <= options.temperature <= most),
            f"0 - {most}, None",
        ),
        "max_tokens": (
            options.max_tokens is None or (_is_whole_number(options.max_tokens) and options.max_tokens > 0),
            "1, 2, 3, ..., None",
        ),
    }
    for name, (fits, accepted) in values.items():
        if not fits:
            value = shown(getattr(options, name))
            raise InputError(
                _("{name} cannot be {value}. Known values: {known}.", name=name, value=value, known=accepted)
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@explains_fields
@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of one run. None means the model's default.

    `reasoning` is on, off, or an effort; `RunResult.effort` has the value that was sent. `ignore_reasoning` removes
    reasoning from the responses, but not from the conversation, because some providers need it again.
    """

    reasoning: Reasoning | None = None
    ignore_reasoning: bool = False
    temperature: float | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        _check_options(self)


DEFAULTS = Options()


class RunOptions(TypedDict, total=False):
    """The keyword options of `Agent.run`, which `Agent.ask`, `Chat` and `stream_to_display` take, too.

    `options` holds values for the fields of `Options`. These fields can also be given by themselves, as in
    `run(..., reasoning=True)`, which overrides `options`. `journal` saves the messages.
    """

    reasoning: Reasoning | None
    ignore_reasoning: bool
    temperature: float | None
    max_tokens: int | None
    options: Options | None
    journal: Journal | None


def checked_options(given: Mapping[str, Any], base: Options = DEFAULTS, spec: ModelSpec | None = None) -> Options:
    """Return `base` with these options after checking each. Raises `InputError` with the option and its known values.

    Nothing is converted: "false" is not a bool, and True is not a number.
    """
    known = [field.name for field in fields(Options)]
    if unknown := next((name for name in given if name not in known), None):
        listed = _("There is no option {name}. Known options: {known}.", name=repr(unknown), known=", ".join(known))
        raise InputError(joined([*meant_by(unknown, known, ("context", "options", "journal")), listed]))
    options = replace(base, **given)
    if spec is not None:
        _check_options(options, max_temperature(spec))
    return options


def max_temperature(spec: ModelSpec) -> int:
    """Return the highest temperature that the model accepts."""
    return MAX_TEMPERATURE.get(spec.dialect, 2) if spec.temperature else 2


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The immutable configuration of a run. A run opens the `toolsets` and uses their tools in addition to `tools`.

    `prepare` converts the prompt before anything is stored or sent, for example by fetching pictures. If it raises
    `InputError`, the run leaves no trace. `documents` are those that are too long for the model; None: look for them in
    the messages. `settings` are further settings of each request, in the library's words. `output` is the type of the
    answer.
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
    settings: ModelSettings = field(default_factory=ModelSettings)
    output: OutputType | None = None

    @property
    def effort(self) -> Reasoning | None:
        """The reasoning effort that is sent in requests; see `RunResult`."""
        return self.connection.effort(self.options.reasoning)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about a retired model, and about options that the model does not support."""
        spec = self.connection.spec
        notes = [effort_note(self.options.reasoning, self.effort, spec)]
        if self.options.temperature is not None and not spec.temperature:
            notes.append(f"The temperature of {spec.label} cannot be set; it was asked without.")
        return tuple(filter(None, [*notes, spec.advice(datetime.now(UTC).date())]))


@dataclass(frozen=True, kw_only=True)
class RunResult(ExplainsAttributes, Generic[OutputT]):
    """The result of a run. `note` has its figures and, if the run ended early, the sentence that says why.

    `files` come from the model or from tools. A suspended run has `pending` questions or approvals, and `suspension`
    is the text for `Agent.resume`. A new run can also continue from `context` without resuming.

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

    if not TYPE_CHECKING:

        def __getitem__(self, key: object) -> Any:
            raise TypeError(f"a result has fields, not items such as [{key!r}]: write result.text")

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
        """Tokens of the whole run. `note.timings.estimated` is True if they are an estimate."""
        timings = self.note.timings
        assert timings is not None
        return {"input_tokens": timings.input_tokens, "output_tokens": timings.output_tokens}

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
