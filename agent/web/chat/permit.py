"""Begins an answer: the permit for it, its run with the history that the model can take, and its journal."""

import logging
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from pydantic_ai.messages import ModelMessage, UserContent

from agent.agent import Agent
from agent.context import Context
from agent.errors import AgentError, InputError
from agent.fetch import Guard
from agent.files.for_model import MIN_BYTES, document_room
from agent.files.long_documents import with_passages
from agent.files.references import with_data
from agent.files.store import MediaStore
from agent.history import ChatSummary, Conversation, new_id
from agent.i18n.text import LocalizedText, _, joined
from agent.i18n.translator import Translator
from agent.limits import Limits
from agent.local.zero_gpu import visitor_token
from agent.messages.adapt import adapt
from agent.messages.cited_documents import web_pages
from agent.messages.compaction import INSTRUCTIONS, estimate, transcript
from agent.messages.repair import estimate_tokens
from agent.models.catalog import ModelSpec
from agent.plain_text import off_loop
from agent.providers.connection import Connection
from agent.result import Options, max_temperature
from agent.runtime.arguments import embedder_of
from agent.runtime.run import Run
from agent.settings import OWN_SEARCH, Settings
from agent.system.request_queue import acting_for
from agent.tools.documents import MAX_RESULT_BYTES
from agent.tools.function_tools import Tool, Toolset
from agent.tools.web import web_tools
from agent.web.chat.answers import LiveRun, LiveRuns, SteeringCount
from agent.web.chat.attached_documents import TOO_LONG, documents_of
from agent.web.chat.choices import Choices, can_search
from agent.web.chat.expiry import RetentionPeriods
from agent.web.chat.folders import Folders
from agent.web.chat.journal import Omitted, RunRequest, StoreJournal
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.model_window import FULL, WindowUse, end_of, reported_tokens, sent_history, summarizable
from agent.web.chat.rate_limit import RateLimiter, Reservation
from agent.web.chat.recent_histories import NEWEST, History, RecentHistories, RecentVectors
from agent.web.chat.sent_message import NO_MESSAGE_ID, MessageId
from agent.web.chat.side_by_side import AnswerBranch, BranchJournal
from agent.web.chat.storage_quota import Reserve, StorageQuota, size_of
from agent.web.chat.system_prompt import default_prompt, with_artifacts
from agent.web.chat.temporary import TemporaryChats
from agent.web.chat.temporary_stores import is_temporary
from agent.web.chat.titles import Titles
from agent.web.chat.transcript import is_prompt
from agent.web.chat.visitor import Visitor

log = logging.getLogger(__name__)


@dataclass(slots=True)
class AnswerPermit:
    """The permit for one answer. With `owns_connection`, the connection serves only this answer and is closed with it.

    Call `reserve` with the size of a message in bytes before the message is stored.
    """

    connection: Connection
    owns_connection: bool
    reservation: Reservation
    models: ModelMenu
    visitor: Visitor
    reserve: Reserve
    handed_over: bool = False

    def hand_over(self) -> None:
        """Hand the permit over to a run. The end of the run calls `aclose`."""
        self.reservation.hand_over()
        self.handed_over = True

    async def aclose(self) -> None:
        """Release the reservation and the connection."""
        self.reservation.release()
        if self.owns_connection:
            await self.models.close(self.connection, self.visitor.owner)


PUBLIC_ANSWER_TOKENS = 16_384
"""Tokens of an answer on a public page if the visitor sets no limit, because strangers spend the owner's money."""
SUMMARY_TOKENS, SUMMARY_BYTES = 1_024, 8_192
"""The most tokens of a summary, and the bytes that are reserved for it."""
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


def run_options(settings: Settings, spec: ModelSpec, choices: Choices) -> Options:
    """Return the options of a run on the page: the visitor's choices, as far as the model has them."""
    return Options(
        reasoning=choices.wanted_reasoning if spec.reasoning else None,
        temperature=None if choices.temperature is None else min(choices.temperature, max_temperature(spec)),
        max_tokens=max_answer_tokens(spec, choices.max_tokens, public=settings.public is not None),
    )


def _room(spec: ModelSpec, most: int | None) -> int:
    """Return the tokens of the context that are left for the system prompt, the history and the new message."""
    examples = estimate_tokens([text for exchange in spec.examples for text in exchange])
    return spec.context_tokens - _answer_tokens(spec, most) - examples - 256


def _system_message(settings: Settings, spec: ModelSpec, choices: Choices, instructions: str) -> str:
    """Return the system prompt. The `instructions` of the chat's folder follow those of the owner or the visitor."""
    own = choices.system_message
    prompt = default_prompt(settings, spec, Translator(choices.language)) if own is None else own
    return "\n\n".join(filter(None, (with_artifacts(prompt, settings, spec), instructions)))


def _answer_tokens(spec: ModelSpec, most: int | None) -> int:
    """Return the tokens of the context that are reserved for reasoning and the answer."""
    if most is not None:
        return min(most, spec.context_tokens // 2)
    usual = spec.usual_output_tokens + (REASONING_TOKENS if spec.reasoning else 0)
    return min(usual, spec.max_output_tokens, spec.context_tokens // 2)


def _uses_tools(choices: Choices, spec: ModelSpec) -> bool:
    return choices.tools and spec.tools != "none"


async def _fit(permit: AnswerPermit, parts: Sequence[UserContent], passages: Sequence[UserContent], room: int) -> int:
    """Return the tokens of these parts, and reserve storage for the passages. Raises `InputError` for too many."""
    tokens, model = estimate_tokens(parts), permit.connection.spec.label
    if tokens > room:
        raise InputError(LocalizedText(TOO_LONG, {"count": tokens, "model": model, "most": room}))
    if passages:
        await permit.reserve(size_of(passages))
    return tokens


class AnswerRuns:
    """Begins the runs of answers, and owns what they share."""

    def __init__(
        self,
        settings: Settings,
        media: MediaStore,
        models: ModelMenu,
        tools: Sequence[Tool | Toolset],
        *,
        histories: RecentHistories,
        live_runs: LiveRuns,
        rate_limiter: RateLimiter,
        quota: StorageQuota,
        titles: Titles,
        temporary: TemporaryChats,
        folders: Folders,
    ) -> None:
        self.models, self.live_runs, self.histories, self.rate_limiter = models, live_runs, histories, rate_limiter
        self._settings, self._media, self._tools = settings, media, tuple(tools)
        self._quota, self._titles, self.temporary, self.folders = quota, titles, temporary, folders
        self.vectors = RecentVectors(embedder_of(settings.embeddings))

    @asynccontextmanager
    async def permit(
        self, visitor: Visitor, choices: Choices, conversation_id: str | None
    ) -> AsyncGenerator[AnswerPermit]:
        """Permit one answer in this conversation. Enter this before reading anything large.

        It reserves a place before anything else happens. All is released at the end, unless a run took the permit.
        Raises `InputError` for invalid choices, `Limited`, and the errors of `ModelMenu.connect`.
        """
        choices.check()
        visitor_token.set(visitor.gpu_token)  # the run that this task starts inherits it
        quota = self.temporary if is_temporary(conversation_id) else self._quota
        with self.rate_limiter.reserve_answer(visitor) as reservation:
            connection, owns_connection = await self.models.connect(visitor.owner, choices.model, visitor.login)
            async with quota.reservation(visitor) as reserve:
                permit = AnswerPermit(connection, owns_connection, reservation, self.models, visitor, reserve)
                try:
                    yield permit
                finally:
                    if not permit.handed_over:
                        await permit.aclose()

    async def set_up(
        self,
        conversation: Conversation,
        choices: Choices,
        permit: AnswerPermit,
        new_parts: Sequence[UserContent],
        *,
        resumed: bool = False,
        before: LostAnswer = NOT_LOST,
        message: MessageId = NO_MESSAGE_ID,
        branch: AnswerBranch | None = None,
    ) -> RunSetup:
        """Read the history of `conversation`, prepare a run that continues it, and reserve room for cited passages.

        `new_parts` are the parts of the new message, whose id is `message`, or the answers that resume a suspended run.
        `branch` is the place of the answer if other models answer the same message.
        Raises `InputError` if they exceed the model's context.
        """
        settings, media, spec = self._settings, self._media, permit.connection.spec
        own_key, vectors = self.models.has_typed_key(conversation.owner, spec), self.vectors.of(conversation.id)
        history = await self.histories.read(conversation) if conversation.revision else History(())
        entries, messages = history.entries, [entry.message for entry in history.entries]
        use_tools = _uses_tools(choices, spec)
        documents = await documents_of(conversation.owner, messages, new_parts, spec, media)
        typed = new_parts
        if not (resumed or use_tools):
            new_parts = await with_passages(new_parts, documents, spec)
        options, folder = run_options(settings, spec, choices), await self.folders.instructions(conversation)
        system = _system_message(settings, spec, choices, folder)
        room = _room(spec, options.max_tokens)
        new = await _fit(permit, [system, *new_parts], [part for part in new_parts if part not in typed], room)
        fitting = partial(sent_history, earlier=history.earlier, beside=0 if resumed else new)
        sent = await off_loop(messages, fitting, conversation.summary, entries, room)
        kept = sent.messages
        switched = bool(messages) and entries[-1].note.model != spec.id
        not_sent = (await off_loop(kept, adapt, kept, spec)).sentence(spec) if switched else ""
        omitted = Omitted(sent.left_out, joined([before.notice, not_sent]))
        request = RunRequest(
            choices=replace(choices, model=spec.id),
            resumed=resumed,
            lost=before.lost,
            instead_of=before.instead_of,
            own_key=own_key,
            compared=branch.id if branch else "",
        )
        agent = self._agent(permit, system, choices, messages)
        open_journal = partial(StoreJournal) if branch is None else partial(BranchJournal, branch)
        periods = RetentionPeriods.of(settings)
        return RunSetup(
            agent=agent.with_documents(*(documents if use_tools else ())).with_vectors(vectors),
            context=Context(
                session_id=conversation.id, messages=tuple(await with_data(media, conversation.owner, kept))
            ),
            options=options,
            journal=open_journal(self.histories.store, media, conversation, omitted, periods, request, message),
            parts=new_parts,
        )

    def _agent(self, permit: AnswerPermit, system: str, choices: Choices, messages: Sequence[ModelMessage]) -> Agent:
        """Return the agent of a run, with the tools and the search in the web that the visitor wants."""
        settings, spec = self._settings, permit.connection.spec
        tools = [*self._tools] if _uses_tools(choices, spec) else []
        has_web, is_own = choices.web and can_search(settings, spec), settings.search == OWN_SEARCH
        count = partial(self.rate_limiter.reserve_search, permit.visitor)
        if has_web and not is_own:
            guard = Guard(allow=() if settings.public else settings.fetch_from)
            most = max(MIN_BYTES, min(document_room(spec) // 4, MAX_RESULT_BYTES))
            first = 1 + max((page.number for page in web_pages(messages)), default=0)
            tools += web_tools(settings.search, guard, max_bytes=most, first=first, permit=count)
        agent = Agent(permit.connection, system_message=system, tools=tools, limits=run_limits(settings))
        return agent.with_search(has_web and is_own, count if settings.public else None)

    async def window(self, conversation: Conversation, spec: ModelSpec, choices: Choices) -> WindowUse:
        """Return how the chat fills the window of this model.

        What is left out is decided by our own cautious count, so the share follows that if it is higher.
        """
        room, summary = self._room(spec, choices), conversation.summary
        entries = (await self.histories.read(conversation)).entries if conversation.revision else ()
        messages, newest = [entry.message for entry in entries], entries[-NEWEST:]
        known = reported_tokens(newest)
        if known is not None and summary is not None and known[1].note.at < summary.at:
            known = None
        sent = await off_loop(messages, sent_history, summary, entries, sys.maxsize)
        folder = await self.folders.instructions(conversation)
        system = estimate_tokens([_system_message(self._settings, spec, choices, folder)])
        counted = system + await off_loop(messages, estimate, sent.messages) if entries else 0
        left_out = known[1].note.left_out if known else 0
        has_turns = sum(map(is_prompt, newest)) > 1 or len(newest) == NEWEST
        return WindowUse(
            tokens=known[0] if known else counted,
            is_estimated=known is None or known[1].note.model != spec.id,
            window=spec.context_tokens,
            room=room,
            share=min(1.0, max(counted, known[0] if known else 0) / room),
            left_out=left_out,
            cost=conversation.cost,
            can_summarize=self._settings.summaries != "off" and has_turns and not spec.examples,
            is_too_small=bool(spec.examples),
            summary=summary if end_of(summary, entries) else None,
        )

    async def summarize(self, conversation: Conversation, choices: Choices, permit: AnswerPermit) -> Conversation:
        """Return the conversation with a summary of its first turns by the permit's model. Nothing is stored.

        Raises `InputError` if there are too few turns, and the error of a model that writes none.
        """
        spec, room = permit.connection.spec, self._room(permit.connection.spec, choices)
        if spec.examples:
            raise InputError(_("{model} is too small to summarize a chat.", model=spec.label))
        entries = (await self.histories.read(conversation)).entries
        first = summarizable(conversation.summary, entries, room)
        if not first:
            raise InputError(_("There are too few messages to summarize."))
        old = sent_history(conversation.summary, entries[:first], sys.maxsize).messages
        limits = replace(run_limits(self._settings), steps=1)
        agent = Agent(permit.connection, system_message=INSTRUCTIONS, limits=limits)
        most = max_answer_tokens(spec, None, public=True) or SUMMARY_TOKENS
        if not spec.always_reasons:
            most = min(SUMMARY_TOKENS, spec.max_output_tokens, max(64, room // 4))
        await permit.reserve(SUMMARY_BYTES)
        permit.reservation.count_for_all()
        with acting_for(conversation.owner):
            result = await agent.ask(
                await off_loop(old, transcript, old, max(1000, 2 * room)),
                reasoning=False if spec.reasoning else None,
                max_tokens=most,
            )
        text = result.checked().text.strip()
        if not text:
            raise AgentError(_("The model wrote no summary."))
        last = next(entry.id for entry in reversed(entries[:first]) if is_prompt(entry))
        summary = ChatSummary(message=last, text=text, model=spec.id)
        return replace(conversation, summary=summary, cost=conversation.cost + (result.cost or 0.0))

    async def fitting(
        self, conversation: Conversation, choices: Choices, permit: AnswerPermit, new: int
    ) -> Conversation:
        """Return the conversation, with a new summary if `new` more tokens fill it and the settings are "auto".

        A failure is logged: the oldest messages are then left out.
        """
        if self._settings.summaries != "auto" or not conversation.revision:
            return conversation
        use = await self.window(conversation, permit.connection.spec, choices)
        if not use.can_summarize or use.share + new / use.room < FULL or new > use.room:  # the last is refused
            return conversation
        try:
            return await self.summarize(conversation, choices, permit)
        except InputError:
            return conversation  # too few turns
        except AgentError as error:
            log.warning("the chat %s was not summarized: %s", conversation.id, error)
            return conversation

    async def steer(self, visitor: Visitor, live: LiveRun, text: str, id_: str) -> bool:
        """Send a running answer a message, which counts like any other unless it comes back. See `LiveRun.steer`.

        Raises `Limited`, and `Conflict` if too many wait.
        """
        quota, id_ = self.temporary if is_temporary(live.conversation_id) else self._quota, id_ or new_id()
        counted = live.counted.get(id_) or SteeringCount(self.rate_limiter.count_message(visitor))
        live.counted[id_] = counted
        counted.callers += 1
        try:
            async with quota.reservation(visitor) as reserve:
                await reserve(size_of([text]))
                return await live.steer(text, id_)
        finally:
            counted.callers -= 1
            if not counted.callers and id_ not in live.steered:
                del live.counted[id_]
                counted.give_back()

    def _room(self, spec: ModelSpec, choices: Choices) -> int:
        """Return the tokens of the model's window that a chat can fill."""
        return max(1, _room(spec, run_options(self._settings, spec, choices).max_tokens))

    def begin(
        self,
        run: Run,
        setup: RunSetup,
        permit: AnswerPermit,
        *,
        resumed: bool = False,
        continues: str = "",
        is_beside: bool = False,
    ) -> LiveRun:
        """Begin the run. From then on, its end releases the permit. See `LiveRuns.start`."""
        spec = permit.connection.spec
        has_no_title = not is_beside and self._titles.is_wanted(setup.journal.conversation, spec)

        async def end() -> None:
            if has_no_title:
                self._titles.begin(permit.visitor, setup.journal.conversation, spec.id, run)
            await permit.aclose()

        live = self.live_runs.start(run, setup.journal, end, resumed=resumed, continues=continues, is_beside=is_beside)
        if has_no_title:
            self._titles.expect(live.conversation_id)
        permit.hand_over()
        return live
