"""Prepares a run of a stored conversation: the history that the model can take, and the visitor's choices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic_ai.messages import UserContent

from agent.agent import Agent
from agent.context import Context
from agent.documents.long_documents import with_passages
from agent.documents.vectors import Vectors
from agent.errors import InputError
from agent.history import Record
from agent.i18n import LocalizedText, joined
from agent.i18n.translator import Translator
from agent.limits import Limits
from agent.media.references import with_data
from agent.media.store import MediaStore
from agent.messages.adapt import adapt
from agent.messages.plain_text import off_loop
from agent.messages.repair import estimate_tokens, keep_newest
from agent.models.catalog import ModelSpec
from agent.providers import Connection
from agent.result import Options, max_temperature
from agent.settings import Settings
from agent.tools import Tool, Toolset
from agent.web.chat.attached_documents import TOO_LONG, documents_of
from agent.web.chat.choices import Choices
from agent.web.chat.expiry import RetentionPeriods
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.message_id import NO_MESSAGE_ID, MessageId
from agent.web.chat.recent_histories import History, RecentHistories
from agent.web.chat.run_request import RunRequest
from agent.web.chat.system_prompt import default_prompt

PUBLIC_ANSWER_TOKENS = 16_384
"""Tokens of an answer on a public page if the visitor sets no limit, because strangers spend the owner's money."""
REASONING_TOKENS = 8_192
"""Tokens of the context that are kept free for reasoning."""


@dataclass(frozen=True, kw_only=True)
class LostAnswer:
    """The facts about the lost run that a run finishes. See `RunRequest`. `notice` is shown with the answer."""

    lost: int = 0
    instead_of: str = ""
    notice: str = ""


NOT_LOST = LostAnswer()


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """The agent, history and options of one run, the parts of its new message, and the journal that stores it."""

    agent: Agent
    context: Context
    options: Options
    journal: StoreJournal
    parts: Sequence[UserContent] = ()


async def set_up_run(
    record: Record,
    request: RunRequest,
    connection: Connection,
    *,
    settings: Settings,
    histories: RecentHistories,
    media: MediaStore,
    tools: Sequence[Tool | Toolset],
    new_parts: Sequence[UserContent],
    notice: str = "",
    message: MessageId = NO_MESSAGE_ID,
    vectors: Vectors | None = None,
) -> RunSetup:
    """Read the history of `record` and prepare a run that continues it.

    `new_parts` are the parts of the new message, whose id is `message`, or the answers that resume a suspended run.
    `vectors` are those of the conversation's long documents. `notice` is shown with the answer. Raises `InputError` if
    the new parts exceed the model's context.
    """
    spec, choices, resumed = connection.spec, request.choices, request.resumed
    history = await histories.read(record) if record.revision else History(())
    stored = history.entries
    messages = [entry.message for entry in stored]
    use_tools = choices.tools and spec.tools != "none"
    documents = await documents_of(record.owner, messages, new_parts, spec, media)
    if not (resumed or use_tools):
        new_parts = await with_passages(new_parts, documents, spec)
    most = max_answer_tokens(spec, choices.max_tokens, public=settings.public is not None)
    examples = estimate_tokens([text for exchange in spec.examples for text in exchange])
    history_tokens = spec.context_tokens - _answer_tokens(spec, most) - examples - 256
    system = _system_message(settings, spec, choices)
    new = estimate_tokens([system, *new_parts])
    if new > history_tokens:
        raise InputError(LocalizedText(TOO_LONG, {"count": new, "model": spec.label, "most": history_tokens}))
    kept = await off_loop(messages, keep_newest, messages, history_tokens, beside=0 if resumed else new)
    switched = bool(stored) and stored[-1].note.model != spec.id
    not_sent = (await off_loop(kept, adapt, kept, spec)).sentence(spec) if switched else ""
    omitted = Omitted(history.earlier + len(messages) - len(kept), joined([notice, not_sent]))
    request = replace(request, choices=replace(choices, model=spec.id))
    return RunSetup(
        agent=Agent(
            connection,
            system_message=system,
            tools=tools if use_tools else (),
            limits=run_limits(settings),
        )
        .with_documents(*(documents if use_tools else ()))
        .with_vectors(vectors),
        context=Context(session_id=record.id, messages=tuple(await with_data(media, record.owner, kept))),
        options=Options(
            reasoning=choices.wanted_reasoning if spec.reasoning else None,
            temperature=None if choices.temperature is None else min(choices.temperature, max_temperature(spec)),
            max_tokens=most,
        ),
        journal=StoreJournal(histories.store, media, record, omitted, RetentionPeriods.of(settings), request, message),
        parts=new_parts,
    )


def run_limits(settings: Settings) -> Limits:
    """Return the limits of a run on the page."""
    return Limits(
        steps=settings.max_steps,
        seconds=settings.run_seconds,
        tool_seconds=settings.tool_seconds,
        retries=settings.retries,
        interactive=False,  # the page shows which limit was reached, and the next message goes on
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


def _system_message(settings: Settings, spec: ModelSpec, choices: Choices) -> str:
    if choices.system_message is not None:
        return choices.system_message
    return default_prompt(settings, spec, Translator(choices.language))


def _answer_tokens(spec: ModelSpec, most: int | None) -> int:
    """Return the tokens of the context that are reserved for reasoning and the answer."""
    if most is not None:
        return min(most, spec.context_tokens // 2)
    usual = spec.usual_output_tokens + (REASONING_TOKENS if spec.reasoning else 0)
    return min(usual, spec.max_output_tokens, spec.context_tokens // 2)
