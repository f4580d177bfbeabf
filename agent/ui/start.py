"""What a run of a stored conversation starts with: what of its history the model takes, and the visitor's choices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.agent import Agent
from agent.context import Context
from agent.fitting import fitted
from agent.guardrails import Limits
from agent.history import HistoryStore, Record
from agent.media import MediaStore
from agent.messages import newest_that_fit
from agent.providers import Connection
from agent.result import Options
from agent.settings import Settings
from agent.tools import Tool, Toolset
from agent.ui.journal import StoreJournal, Unsent


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a visitor has set on the page; `picked` where the model was their own choice, not the first there was.

    `read_here`: text in pictures and speech in sounds are read on this machine for a model that cannot see or hear.
    """

    model: str = ""
    picked: bool = False
    system_message: str = ""
    reasoning: bool = True
    temperature: float | None = None
    max_tokens: int | None = None
    tools: bool = False
    read_here: bool = False


@dataclass(frozen=True, kw_only=True)
class Start:
    """An agent, the history and the options of one run, and where it is written on."""

    agent: Agent
    context: Context
    options: Options
    journal: StoreJournal


async def start(
    record: Record,
    choices: Choices,
    connection: Connection,
    *,
    settings: Settings,
    store: HistoryStore,
    media: MediaStore,
    tools: Sequence[Tool | Toolset],
) -> Start:
    """Read the history of `record` and put together what a run behind it needs."""
    spec = connection.spec
    stored = await store.history(record) if record.revision else []
    messages = [entry.message for entry in stored]
    most = min(choices.max_tokens or spec.usual_output_tokens, spec.max_output_tokens)
    kept = newest_that_fit(messages, spec.context_tokens - most - 256)
    switched = bool(stored) and stored[-1].note.model != spec.id
    unsent = Unsent(len(messages) - len(kept))
    if switched:
        fit = fitted(kept, spec)
        unsent = replace(unsent, omitted=fit.sentence(spec), sayings=fit.sayings(spec))
    return Start(
        agent=Agent(
            connection,
            system_message=choices.system_message,
            tools=tools if choices.tools and spec.tools != "none" else (),
            limits=Limits(
                steps=settings.max_steps,
                seconds=settings.run_seconds,
                tool_seconds=settings.tool_seconds,
                retries=settings.retries,
                interactive=False,  # the page says which bound was reached, and the next message goes on
            ),
        ),
        context=Context(session_id=record.id, messages=tuple(await media.loaded(record.owner, kept))),
        options=Options(
            reasoning=choices.reasoning if spec.reasoning else None,
            temperature=choices.temperature,
            max_tokens=most,
        ),
        journal=StoreJournal(store, media, record, unsent),
    )
