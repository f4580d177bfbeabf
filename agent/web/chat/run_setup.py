"""Prepares a run of a stored conversation: the history that the model can take, and the visitor's choices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic_ai.messages import UserContent

from agent.agent import Agent
from agent.context import Context
from agent.errors import InputError
from agent.history import Entry, Record
from agent.i18n import N_, LocalizedText, _
from agent.limits import Limits
from agent.media.references import with_data
from agent.media.store import MediaStore
from agent.messages.adapt import adapt
from agent.messages.repair import estimate_tokens, keep_newest
from agent.models.catalog import ModelSpec
from agent.providers import Connection, Reasoning
from agent.result import Options, max_temperature
from agent.settings import Settings
from agent.tools import Tool, Toolset
from agent.web.chat.expiry import RetentionPeriods
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.recent_histories import RecentHistories
from agent.web.chat.system_prompt import default_prompt

MAX_PROMPT_CHARACTERS = 20_000
"""The most characters of a system prompt."""

MAX_TEMPERATURE = 2.0
"""The highest temperature that can be set."""
HIGHEST_TOKEN_LIMIT = 10_000_000
"""The highest limit of an answer that can be set, more than any model writes."""
PUBLIC_ANSWER_TOKENS = 16_384
"""Tokens of an answer on a public page if the visitor sets no limit, because strangers spend the owner's money."""
REASONING_TOKENS = 8_192
"""Tokens of the context that are kept free for reasoning."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The settings of a visitor on the page. `picked` is True if the visitor chose the model.

    `max_tokens` is the visitor's own limit of an answer, or None. `system_message` is None for the default and "" for
    no system prompt. With `extract_text`, text in images and speech in audio are extracted on this machine for a model
    that cannot see or hear.
    """

    model: str = ""
    picked: bool = False
    system_message: str | None = None
    reasoning: Reasoning = True
    temperature: float | None = None
    max_tokens: int | None = None
    tools: bool = False
    extract_text: bool = False

    def check(self) -> None:
        """Raise `InputError` if the system prompt is too long."""
        count = len(self.system_message or "")
        if count > MAX_PROMPT_CHARACTERS:
            raise InputError(
                _(
                    "The system prompt has {count:,} characters; {most:,} is the most.",
                    count=count,
                    most=MAX_PROMPT_CHARACTERS,
                )
            )


def text_of(value: object, most: int | None = None) -> str:
    """Return the first `most` characters of a widget's text, or "" for anything else."""
    return value[:most] if isinstance(value, str) else ""


def temperature_of(value: object) -> float | None:
    """Return a widget's temperature, clipped to the range of all models, or None for anything else."""
    return None if (number := _number(value)) is None else min(max(number, 0.0), MAX_TEMPERATURE)


def limit_of(value: object) -> int | None:
    """Return a widget's limit of an answer, clipped to what any model writes, or None for anything else."""
    return None if (number := _number(value)) is None else max(0, int(min(number, HIGHEST_TOKEN_LIMIT))) or None


def _number(value: object) -> float | None:
    """Return the number, infinite if it is too large for a float, or None if the value is no number."""
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else 0.0
    return None if math.isnan(number) else max(number, 0.0)


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """The agent, history and options of one run, and the journal that stores it."""

    agent: Agent
    context: Context
    options: Options
    journal: StoreJournal


async def set_up_run(
    record: Record,
    choices: Choices,
    connection: Connection,
    *,
    settings: Settings,
    histories: RecentHistories,
    media: MediaStore,
    tools: Sequence[Tool | Toolset],
    new_parts: Sequence[UserContent],
    resumed: bool,
) -> RunSetup:
    """Read the history of `record` and prepare a run that continues it.

    `new_parts` are the parts of the new message, or the answers that resume a suspended run. `resumed`: the run adds to
    the last turn. Raises `InputError` if the new parts exceed the model's context.
    """
    spec = connection.spec
    stored: Sequence[Entry] = await histories.read(record) if record.revision else ()
    messages = [entry.message for entry in stored]
    most = max_answer_tokens(spec, choices.max_tokens, public=settings.public is not None)
    examples = estimate_tokens([text for exchange in spec.examples for text in exchange])
    history_tokens = spec.context_tokens - _answer_tokens(spec, most) - examples - 256
    system = default_prompt(settings, spec) if choices.system_message is None else choices.system_message
    new = estimate_tokens([system, *new_parts])
    if new > history_tokens:
        text = N_(
            "The message, with the system prompt, has about {count:,} tokens, and {model} reads at most {most:,}."
        )
        raise InputError(LocalizedText(text, {"count": new, "model": spec.label, "most": history_tokens}))
    kept = keep_newest(messages, history_tokens, beside=0 if resumed else new)
    switched = bool(stored) and stored[-1].note.model != spec.id
    omitted = Omitted(len(messages) - len(kept))
    if switched:
        fit = adapt(kept, spec)
        omitted = replace(omitted, omitted=fit.sentence(spec))
    return RunSetup(
        agent=Agent(
            connection,
            system_message=system,
            tools=tools if choices.tools and spec.tools != "none" else (),
            limits=Limits(
                steps=settings.max_steps,
                seconds=settings.run_seconds,
                tool_seconds=settings.tool_seconds,
                retries=settings.retries,
                interactive=False,  # the page shows which limit was reached, and the next message goes on
            ),
        ),
        context=Context(session_id=record.id, messages=tuple(await with_data(media, record.owner, kept))),
        options=Options(
            reasoning=choices.reasoning if spec.reasoning else None,
            temperature=None if choices.temperature is None else min(choices.temperature, max_temperature(spec)),
            max_tokens=most,
        ),
        journal=StoreJournal(histories.store, media, record, omitted, RetentionPeriods.of(settings)),
    )


def max_answer_tokens(spec: ModelSpec, wanted: int | None, *, public: bool = False) -> int | None:
    """Return the length limit of an answer in tokens. None leaves it to the model's server.

    A local model always gets a limit, because it might repeat itself until its context is full.
    """
    if wanted is not None:
        return min(wanted, spec.max_output_tokens)
    if spec.provider == "llama.cpp":
        return spec.max_output_tokens
    return min(max(spec.usual_output_tokens, PUBLIC_ANSWER_TOKENS), spec.max_output_tokens) if public else None


def _answer_tokens(spec: ModelSpec, most: int | None) -> int:
    """Return the tokens of the context that are reserved for reasoning and the answer."""
    if most is not None:
        return min(most, spec.context_tokens // 2)
    usual = spec.usual_output_tokens + (REASONING_TOKENS if spec.reasoning else 0)
    return min(usual, spec.max_output_tokens, spec.context_tokens // 2)
