"""What goes into a run and what comes out of it, as values; and the journal it writes to."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, Self, cast, get_args

from pydantic_ai.messages import BinaryContent, FilePart, ModelMessage, TextPart, ToolReturnPart

from agent.context import Context
from agent.errors import AgentError, InputError, localized_error
from agent.history import Note
from agent.limits import Limits
from agent.messages.openai import to_openai
from agent.models.catalog import ModelSpec
from agent.providers import Connection, Effort, Reasoning, effort_note, is_reasoning
from agent.suspension import Pending
from agent.suspension.seals import Seals
from agent.tools import Tool, Toolset

FinishReason = Literal["stop", "length", "content_filter", "cancelled", "suspended", "limit", "error"]


SENTENCES = {
    "wrong_option": "{name} cannot be {value}. Known values: {known}.",
    "unknown_option": "There is no option {name}. Known options: {known}.",
}
MAX_TEMPERATURE: Mapping[str, int] = {"messages": 1}
"""The highest temperature of the dialects that don't take 2."""


class RecordedEnd(AgentError):
    """Ends a run so, and with that sentence: raised by a model that plays a run of the past."""

    def __init__(self, reason: FinishReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: FinishReason = reason


class Journal(Protocol):
    """Where a run writes what must not be lost: each message as it is finished, the user's before any request."""

    async def write(self, message: ModelMessage, note: Note) -> None:
        """Keep the message; return when it is kept. Raises `HistoryError`, which ends the run."""
        ...


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may differ from run to run. None leaves it to the model.

    `reasoning` is on, off, or an effort; see `RunResult.effort` for what a model made of it. `ignore_reasoning` leaves
    reasoning out of the responses; it stays in the conversation, as some providers must be sent it again.
    """

    reasoning: Reasoning | None = None
    ignore_reasoning: bool = False
    temperature: float | None = None
    max_tokens: int | None = None


DEFAULTS = Options()


def checked_options(given: Mapping[str, Any], base: Options = DEFAULTS, spec: ModelSpec | None = None) -> Options:
    """`base` with these options, every one of them checked. Raises `InputError` with the option and its known values.

    Nothing is converted: "false" is no bool, and True is no number.
    """
    known = [field.name for field in fields(Options)]
    if unknown := next((name for name in given if name not in known), None):
        raise localized_error(InputError, SENTENCES, "unknown_option", name=repr(unknown), known=", ".join(known))
    options = replace(base, **given)
    most = max_temperature(spec) if spec is not None else 2
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
            value = repr(getattr(options, name))[:80]
            raise localized_error(InputError, SENTENCES, "wrong_option", name=name, value=value, known=accepted)
    return options


def max_temperature(spec: ModelSpec) -> int:
    """The highest temperature that the model takes."""
    return MAX_TEMPERATURE.get(spec.dialect, 2) if spec.temperature else 2


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run works with; nothing in it changes. The tools of `toolsets` come to `tools` when a run opens them.

    `prepare` makes of the prompt what can be kept and sent, before anything is: what it refuses with an `InputError`
    has not happened.
    """

    connection: Connection
    system_message: str
    tools: Mapping[str, Tool]
    toolsets: tuple[Toolset, ...]
    limits: Limits
    options: Options
    seals: Seals
    prepare: Callable[[list[ModelMessage]], Awaitable[list[ModelMessage]]] | None = None

    @property
    def effort(self) -> Reasoning | None:
        """What requests say of reasoning; see `RunResult`."""
        return self.connection.effort(self.options.reasoning)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was asked for and cannot be had, as sentences."""
        spec = self.connection.spec
        said = [effort_note(self.options.reasoning, self.effort, spec)]
        if self.options.temperature is not None and not spec.temperature:
            said.append(f"The temperature of {spec.label} cannot be set; it was asked without.")
        return tuple(filter(None, said))


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended and what came of it; `note` has its figures and, where it ended early, the sentence why.

    `files` are those that the model made or a tool returned. A run that is suspended waits for what is `pending`, and
    `suspension` is the text that `Agent.resume` takes; without it `context` can be gone on from all the same.

    `effort` is what the requests said of reasoning, in the words of `Options.reasoning`; None: nothing. `notes` are
    sentences on what was asked for and could not be had. `failure` is the exception that ended the run, if one did.
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

    @property
    def failed(self) -> bool:
        """True if an error or a limit ended the run. A cancelled or suspended run has not failed."""
        return self.finish_reason in ("error", "limit")

    @property
    def why(self) -> str:
        """Why the run failed, as a sentence; "" if it did not."""
        return self.note.detail if self.failed else ""

    def checked(self) -> Self:
        """This result if the run did not fail, as in `(await agent.ask(...)).checked()`. Raises its `AgentError`.

        What a provider did is raised as the `ProviderError` it was, with its `kind`.
        """
        if self.failed:
            raise self.failure or AgentError(self.why, sayings=self.note.sayings)
        return self

    def __str__(self) -> str:
        """The text, and where the run failed also why: printing a result is never silent."""
        return "\n".join(filter(None, [self.text, f"[{self.finish_reason}] {self.why}" if self.failed else ""]))

    @property
    def final_output(self) -> str:
        """The same as `text`."""
        return self.text

    @property
    def cost(self) -> float | None:
        """US dollars for the whole run, None where no price is known or a part of the usage is not."""
        return self.note.cost

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the whole run; see `note.timings` for whether they are an estimate."""
        timings = self.note.timings
        assert timings is not None
        return {"input_tokens": timings.input_tokens, "output_tokens": timings.output_tokens}

    def to_input_list(self) -> list[dict[str, Any]]:
        """The whole conversation in OpenAI's format, tool calls included; it is accepted back as a prompt."""
        return to_openai(self.context.messages, self.system_message)


def text_of_message(message: ModelMessage) -> str:
    """The text of a response, its parts joined as their bubble is."""
    return "\n\n".join(part.content for part in message.parts if isinstance(part, TextPart))


def files_of_messages(messages: Iterable[ModelMessage]) -> Iterator[BinaryContent]:
    """What the model made and what tools returned that is no text."""
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, FilePart):
            yield part.content
        elif isinstance(part, ToolReturnPart):
            content: Any = part.content
            items = cast(list[Any], content) if isinstance(content, list) else [content]
            yield from (item for item in items if isinstance(item, BinaryContent))
