"""The chat service: send, retry, edit and undo. Knows no widgets.

The store is the single source of truth. A run writes to it through a journal, and a page watches the run. Every call
names the owner and is refused for conversations of other owners.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from random import SystemRandom
from typing import Any, cast

from pydantic_ai.messages import ModelResponse, UserContent

from agent.errors import AgentError, Conflict, InputError, NotFound, StoreUnavailable
from agent.files.long_documents import without_passages
from agent.files.references import with_data
from agent.files.store import MediaStore
from agent.files.transcribe import ReportProgress, Transcriber
from agent.history import (
    ALL_BAD,
    MOST_MODELS,
    NO_CONVERSATION,
    TIE,
    ChatSummary,
    Conversation,
    Entry,
    HistoryStore,
    Vote,
    new_id,
)
from agent.i18n.text import _
from agent.i18n.translator import Translator
from agent.messages.prompt import Prompt
from agent.messages.repair import estimate_tokens, unfinished_text
from agent.models.catalog import ModelSpec
from agent.plain_text import off_loop
from agent.providers.connection import Effort
from agent.runtime.run import Run
from agent.settings import Settings
from agent.suspension.suspended_run import Resumption, Suspension
from agent.system.request_queue import RequestQueue, acting_for
from agent.system.threads import TURNS, run_to_completion
from agent.tools.function_tools import Tool, Toolset
from agent.web.chat.answers import STILL_WRITING, AnswersTogether, LiveRun, LiveRuns, RunningAnswers
from agent.web.chat.attached_documents import with_new_passages
from agent.web.chat.attachments import WRITE_FIRST, AttachmentLimits, check_length, message_parts
from agent.web.chat.branches import Branches
from agent.web.chat.choices import Choices, RememberedSettings, requested_choices, set_by_visitor
from agent.web.chat.conversation_list import ConversationList
from agent.web.chat.journal import branch, request_of
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.model_window import WindowUse
from agent.web.chat.permit import AnswerPermit, AnswerRuns, LostAnswer, RunSetup
from agent.web.chat.questions import MESSAGE_GONE, QuestionId, Replies, parse_answer, with_below
from agent.web.chat.recovery import GOES_ON, LOST
from agent.web.chat.sent_message import NO_MESSAGE_ID, MessageId, SentFile, has_typed_text, sent_files, typed_text
from agent.web.chat.side_by_side import AnswerBranch, BranchJournal, SharedConversation, begins_of, has_hidden_model
from agent.web.chat.storage_quota import StorageQuota, size_of
from agent.web.chat.stored_entries import CHAT_CHANGED, get_or_begin, last_prompt, last_turn, waits_for_answer
from agent.web.chat.system_prompt import adapt_prompt, own_prompt
from agent.web.chat.temporary import TemporaryChats
from agent.web.chat.titles import Titles
from agent.web.chat.transcript import content_parts, is_prompt, is_unfinished, to_turns
from agent.web.chat.views import ChatViews
from agent.web.chat.visitor import Visitor


class StorageStatus:
    """`is_away` is True while the server of the store was away at the last look."""

    def __init__(self, store: HistoryStore) -> None:
        self.store = store
        self.is_away = False

    async def check(self) -> None:
        """Look again."""
        try:
            await self.store.list(new_id(), limit=1)
            self.is_away = False
        except StoreUnavailable:
            self.is_away = True


log = logging.getLogger(__name__)

Parts = list[UserContent]
VOTED_CHATS, VOTES_PAGE, MOST_VOTES = 5_000, 200, 5_000
"""The newest chats whose votes are counted, how many of them are read at once, and the most votes."""
WINDOWS = 2
"""Chats whose use of a window is counted at once. Others wait, and visitors take turns."""
CONTINUE = _("Continue exactly where you stopped.")
"""The message that asks a model for the rest of its answer, if it cannot continue it itself."""
SAVES = 20
"""Attempts to store a summary while the chat goes on."""
CONTINUED = _("The server process was lost in the middle; another one has continued the text")
BEGUN_AGAIN = _("The server process was lost in the middle; another one has begun this step again")


@dataclass(frozen=True)
class OtherModels:
    """The other models that answer a message. `each_from_own`: each goes on from its own answer to the last one.

    `is_blind`: their order is drawn by lot, and their names are hidden until the visitor votes.
    """

    choices: Sequence[Choices]
    each_from_own: bool = True
    is_blind: bool = False


async def _keep_failed(failed: Sequence[tuple[RunSetup, LiveRun]]) -> None:
    """Store the messages that could not be stored for some of several models, so that their columns say why."""
    for setup, live in failed:
        await live.wait_for_end()
        journal, result = setup.journal, live.run.result
        if isinstance(journal, BranchJournal) and result is not None:
            try:
                await journal.keep_failed(_prompt_of(setup), result.note)
            except (AgentError, OSError) as error:
                log.warning("the message to %s could not be stored: %s", result.note.model, error)


def _prompt_of(setup: RunSetup) -> Prompt:
    parts = list(setup.parts)
    return cast(Prompt, parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts)


@dataclass(eq=False, kw_only=True)
class Conversations:
    """All operations of a page on conversations. `agent.web.app.build_conversations` makes the parts."""

    settings: Settings
    store: HistoryStore
    media: MediaStore
    models: ModelMenu
    tools: Sequence[Tool | Toolset]
    transcriber: Transcriber
    attachment_limits: AttachmentLimits
    storage: StorageStatus
    live_runs: LiveRuns
    running: RunningAnswers
    replies: Replies
    titles: Titles
    list: ConversationList
    views: ChatViews
    temporary: TemporaryChats
    branches: Branches
    quota: StorageQuota
    runs: AnswerRuns
    remembered: RememberedSettings = field(default_factory=RememberedSettings)
    _measuring: RequestQueue = field(default_factory=lambda: RequestQueue(WINDOWS), init=False)

    # Queries

    def choices(self, owner: str) -> Choices:
        """Return what this owner has set, or the defaults."""
        return self.remembered.get(owner) or Choices()

    def model_for(self, owner: str, model: str | None) -> ModelSpec | None:
        """Return the named model, or the one that this owner chose before, or the first local one."""
        return self.models.get(model) or self.models.get(self.choices(owner).model) or self.models.find("")

    def for_model(self, owner: str, choices: Choices, translator: Translator) -> Choices:
        """Return choices in this language, with a system prompt for their model: a page can show another one's."""
        choices = replace(choices, language=translator.language)
        if choices.system_message is None:
            return choices
        spec, specs = self.model_for(owner, choices.model), self.models.specs_with(choices.model)
        own = own_prompt(choices.system_message, self.settings, specs)
        if own is not None:
            own = adapt_prompt(own, self.settings, spec, specs, translator)
        return replace(choices, system_message=own)

    def remember(self, visitor: Visitor, choices: Choices) -> None:
        """Remember the model of a message, which the page shows when it is loaded again.

        The other settings are remembered only if none are, for example after a restart, so that a page opened earlier
        does not undo what was set on another page.
        """
        before = self.remembered.get(visitor.owner)
        if before is None:
            before = set_by_visitor(choices, self.model_for(visitor.owner, choices.model))
        self.remembered.put(visitor, replace(before, model=choices.model))

    def choose_model(self, visitor: Visitor, spec: ModelSpec, translator: Translator) -> None:
        """Remember the model that the visitor chose. A prompt that begins with the default one names the new model."""
        chosen = self.choices(visitor.owner)
        if chosen.system_message is not None:
            specs = self.models.specs_with(chosen.model)
            prompt = adapt_prompt(chosen.system_message, self.settings, spec, specs, translator)
            chosen = replace(chosen, system_message=prompt)
        self.remembered.put(visitor, replace(chosen, model=spec.id, picked=True))

    def choose(self, visitor: Visitor, options: Mapping[str, Any]) -> None:
        """Remember only these settings: a page can show what its model supports, not what was set.

        Raises `InputError` for a wrong one. A prompt with the default's text means the default.
        """
        before = self.choices(visitor.owner)
        chosen = requested_choices(before.model, options, before, elsewhere="model, effort")
        if chosen.system_message is not None:
            own = own_prompt(chosen.system_message, self.settings, self.models.specs_with(before.model))
            chosen = replace(chosen, system_message=own)
        if isinstance(options.get("reasoning"), bool):
            chosen = replace(chosen, effort=before.effort)
        self.remembered.put(visitor, chosen)

    def choose_effort(self, visitor: Visitor, effort: Effort | None) -> None:
        """Remember how much a model reasons for this visitor."""
        self.remembered.put(visitor, replace(self.choices(visitor.owner), effort=effort))

    def better_model(self, owner: str, model: str) -> ModelSpec | None:
        """Return the first model if the visitor uses another one without having chosen it."""
        first = self.models.find("")
        if first is None or not model or self.choices(owner).picked or first.id == model:
            return None
        return first

    async def find_sent(self, owner: str, conversation_id: str | None, message: MessageId) -> str | None:
        """Return the conversation in which the owner's message is stored already, if it was sent again."""
        if not message.again:
            return None
        with suppress(NotFound):
            conversation = await self.store.get(conversation_id or message.conversation(owner), owner=owner)
            if await self.store.find(conversation, ids=message.for_models(MOST_MODELS)):
                return conversation.id
        return None

    async def window(self, owner: str, conversation_id: str, choices: Choices) -> WindowUse | None:
        """Return how a chat fills the window of the chosen model, or None as long as there is no model."""
        spec = self.model_for(owner, choices.model)
        conversation = await self.store.get(conversation_id, owner=owner)
        if spec is None:
            return None
        with acting_for(owner):
            async with self._measuring.slot():
                return await self.runs.window(conversation, spec, choices)

    # Actions

    async def summarize(self, visitor: Visitor, conversation_id: str, choices: Choices) -> None:
        """Let the model write a summary that is sent instead of the first turns. An answer can begin meanwhile."""
        owner = visitor.owner
        if self.settings.summaries == "off":
            raise NotFound(NO_CONVERSATION)
        conversation = await self._idle(owner, conversation_id)
        async with self.runs.permit(visitor, choices, conversation_id) as permit:
            made = await self.runs.summarize(conversation, choices, permit)
        await run_to_completion(self._save_summary(conversation, made.summary, made.cost - conversation.cost))

    async def drop_summary(self, owner: str, conversation_id: str) -> None:
        """Let the messages be sent that the summary stands for. Raises `Conflict` while an answer is being written."""
        conversation = await self._idle(owner, conversation_id)
        await self.store.save(replace(conversation, summary=None))

    async def send(
        self,
        visitor: Visitor,
        conversation_id: str | None,
        value: dict[str, Any] | None,
        choices: Choices,
        report: ReportProgress | None = None,
        message: MessageId = NO_MESSAGE_ID,
        others: OtherModels | None = None,
        folder: str = "",
    ) -> LiveRun | None:
        """Store a message and begin the answer. Return the live run once the message is stored.

        With `others`, several models answer, and the live run is the first one. A new conversation is in `folder`.
        `report` is called while files are read. If a suspended run has a question, the text is the reply to it, and the
        result is None if more questions are left. Raises an `AgentError` with a message; then nothing was stored.
        """
        owner, files = visitor.owner, (value or {}).get("files")
        conversation = await self._conversation(owner, conversation_id, message, folder)
        if not files and await waits_for_answer(self.store, conversation):
            if others is not None:
                raise Conflict(_("Answer the model's question first."))
            return await self.answer(visitor, conversation_id, str((value or {}).get("text") or ""), choices)
        if others is not None:
            each = [choices, *others.choices]
            if others.is_blind:
                SystemRandom().shuffle(each)
            return await self._send_to_all(visitor, conversation, value, each, others, report, message)
        async with self.runs.permit(visitor, choices, conversation_id) as permit:
            parts = await self._parts(value, choices, permit, report)
            if files:  # reading them can take minutes, in which the chat can go on elsewhere
                conversation = await self._conversation(owner, conversation_id, message, folder)
            return await self._start(conversation, parts, choices, permit, message)

    async def steer(self, visitor: Visitor, conversation_id: str, text: str, message: MessageId) -> bool:
        """Send the answer that is being written a message, which its model gets at its next step.

        Return True once the message is stored, and False if there is no such answer or it ends before another step:
        then the message can be sent as the next one. A caller that is cancelled takes the message back.
        """
        if not text.strip():
            raise InputError(WRITE_FIRST)
        check_length(text)
        live = await self.running.get(conversation_id, visitor.owner)  # first: it knows what is being stored
        if await self.find_sent(visitor.owner, conversation_id, replace(message, again=True)):
            return True
        if not isinstance(live, LiveRun) or not live.can_steer:
            return False
        return await self.runs.steer(visitor, live, text, message.value)

    async def _send_to_all(
        self,
        visitor: Visitor,
        conversation: Conversation,
        value: dict[str, Any] | None,
        choices: Sequence[Choices],
        others: OtherModels,
        report: ReportProgress | None,
        message: MessageId,
    ) -> LiveRun:
        """Send a message to several models. Nothing is stored if one of them is refused."""

        async def parts(place: int, permit: AnswerPermit) -> Parts:
            return await self._parts(value, choices[place], permit, report)

        async def begins(conversation: Conversation, models: Sequence[str]) -> Sequence[str | None]:
            return await begins_of(self.store, conversation, models, each_from_own=others.each_from_own)

        blind = others.is_blind
        return await self._answer_side_by_side(visitor, conversation, choices, parts, begins, message, is_blind=blind)

    async def _edit_for_all(
        self,
        visitor: Visitor,
        conversation: Conversation,
        entries: Sequence[Entry],
        text: str,
        choices: Choices,
        notice: str,
    ) -> LiveRun:
        """Replace the text of a message to several models, each of which has its entry, and ask all again.

        The `notice` is shown with the answers.
        """

        async def parts(place: int, permit: AnswerPermit) -> Parts:
            return await self._parts_again(conversation, entries[place], text, permit)

        async def begins(_: Conversation, __: Sequence[str]) -> Sequence[str | None]:
            return [entry.parent_id for entry in entries]

        each = [replace(choices, model=entry.note.model) for entry in entries]
        blind = has_hidden_model(entries[0], conversation.votes)
        return await self._answer_side_by_side(
            *(visitor, conversation, each, parts, begins, NO_MESSAGE_ID), is_blind=blind, notice=notice
        )

    async def _answer_side_by_side(
        self,
        visitor: Visitor,
        conversation: Conversation,
        choices: Sequence[Choices],
        parts_of: Callable[[int, AnswerPermit], Awaitable[Parts]],
        begins_in: Callable[[Conversation, Sequence[str]], Awaitable[Sequence[str | None]]],
        message: MessageId,
        *,
        is_blind: bool,
        notice: str = "",
    ) -> LiveRun:
        """Let several models answer. `parts_of` returns the message to one, and `begins_in` what each follows."""
        if (public := self.settings.public) is not None and len(choices) > public.answers_each:
            raise InputError(_("Models side by side here: at most {most}.", most=public.answers_each))
        async with AsyncExitStack() as stack:
            permits = [
                await stack.enter_async_context(self.runs.permit(visitor, one, conversation.id)) for one in choices
            ]
            models = [permit.connection.spec.id for permit in permits]
            if not 1 < len({*models}) == len(models) <= MOST_MODELS:
                raise InputError(_("Compare two to {most} different models.", most=MOST_MODELS))
            all_parts = [await parts_of(place, permit) for place, permit in enumerate(permits)]
            if conversation.revision:  # reading files can take minutes, in which the chat can go on elsewhere
                conversation = await self._idle(conversation.owner, conversation.id)
            begins = await begins_in(conversation, models)
            ids = MessageId(message.value or new_id()).for_models(len(models))
            shared = SharedConversation(conversation, begins)
            if message.value and conversation.revision and await self.store.find(conversation, ids=ids):
                raise Conflict(CHAT_CHANGED)  # it was sent twice at once, and the other one has stored some
            setups = [
                await self.runs.set_up(
                    *(replace(conversation, head_id=begin), one, permit, parts),
                    message=MessageId(ids[place]),
                    branch=AnswerBranch(shared, place, ids, is_blind),
                    before=LostAnswer(notice=notice),
                )
                for place, (begin, one, permit, parts) in enumerate(
                    zip(begins, choices, permits, all_parts, strict=True)
                )
            ]
            # Nothing waits between the beginnings, so that no page sees some of them without the others.
            answers = [
                self._begin(setup, permit, is_beside=place > 0)
                for place, (setup, permit) in enumerate(zip(setups, permits, strict=True))
            ]
            together = self.live_runs.together[conversation.id] = AnswersTogether(answers)
        try:
            written = [setup.journal.wait_for_first_write(one.run) for setup, one in zip(setups, answers, strict=True)]
            failures = await asyncio.gather(*map(run_to_completion, written), return_exceptions=True)
            if not all(failures):
                failed = [(one, live) for one, live, failure in zip(setups, answers, failures, strict=True) if failure]
                await run_to_completion(_keep_failed(failed))
        finally:
            together.is_stored.set()
        if all(failures):  # else the others are answered
            await together.wait_for_end()
            raise cast(BaseException, failures[0])
        self.replies.forget(conversation.id)
        return answers[0]

    async def _parts(
        self, value: dict[str, Any] | None, choices: Choices, permit: AnswerPermit, report: ReportProgress | None
    ) -> Parts:
        """Return the parts of a message for the model of this permit."""
        if (value or {}).get("files"):
            permit.reservation.count_for_all()
        return await message_parts(
            value,
            spec=permit.connection.spec,
            owner=permit.visitor.owner,
            max_bytes=self.settings.max_upload_bytes,
            transcriber=self.transcriber if choices.extract_text else None,
            report=report,
            reserve=permit.reserve,
            limits=self.attachment_limits,
        )

    async def answer(
        self,
        visitor: Visitor,
        conversation_id: str | None,
        text: str,
        choices: Choices,
        pressed: QuestionId | None = None,
    ) -> LiveRun | None:
        """Answer a question of a suspended run and resume it. Return None if it has more questions.

        `pressed` is the question whose button was pressed. Raises `Conflict` if there is no question or another one
        now, and `InputError` for an invalid answer.
        """
        check_length(text)
        conversation = await self._idle(visitor.owner, conversation_id)
        entries, conversation_id = await last_turn(self.store, conversation), conversation.id
        turns = await TURNS.run(to_turns, entries, replies=self.replies.get(conversation_id))
        turn = turns[-1] if turns else None
        if turn is None or turn.question is None:
            raise Conflict(_("This question is no longer open. The page is up to date now."))
        if pressed is not None and pressed != QuestionId(turn.run, turn.question["id"]):
            raise Conflict(_("That question was already answered. The page shows the current one."))
        parse_answer(turn.question, text)
        replies = {**(turn.replies or {}), turn.question["id"]: text.strip()}
        if replace(turn, replies=replies).question is not None:
            with self.runs.rate_limiter.reserve_answer(visitor):
                self.replies.put(conversation, {QuestionId(turn.run, call): one for call, one in replies.items()})
            return None
        async with self.runs.permit(visitor, choices, conversation_id) as permit:
            # The pending calls need the tools, even if they were switched off since.
            choices, texts = replace(choices, tools=True), list(replies.values())
            await permit.reserve(size_of(texts))
            setup = await self.runs.set_up(conversation, choices, permit, texts, resumed=True)
            answers = {call["id"]: parse_answer(call, replies[call["id"]]) for call in turn.open_questions}
            messages = setup.context.messages
            suspended = await off_loop(messages, Suspension.of, setup.context.session_id, messages)
            suspension = with_below(replace(suspended, options=asdict(setup.options)), turn.note)
            resumption = Resumption(suspension=suspension, answers=answers, sealed=False, changed_ok=True)
            resumption.check(setup.agent.tools)
            setup.journal.log.keep_replies(resumption.results())
            run = setup.agent.resume(suspension, answers, journal=setup.journal)
            live = await self._resume(run, setup, permit)
        self.replies.forget(conversation_id)
        return live

    async def retry(self, visitor: Visitor, conversation_id: str | None, entry_id: str, choices: Choices) -> LiveRun:
        """Answer the last message again, on its own branch. Raises `Conflict` if it is no longer the last one."""
        await self._check_not_busy(conversation_id, visitor.owner)
        async with self.runs.permit(visitor, choices, conversation_id) as permit:
            entry, conversation, _ = await self._find_last(visitor.owner, conversation_id, entry_id)
            return await self._answer_again(conversation, entry, None, choices, permit)

    async def continue_answer(
        self, visitor: Visitor, conversation_id: str | None, entry_id: str, text: str, choices: Choices
    ) -> tuple[LiveRun, str]:
        """Let the model write the rest of an answer that the length limit, a stop, a failure or the server's end cut.

        If the model cannot continue its own text, it gets `text` as an ordinary message. Return the live run, and the
        name of the model then, else "". Raises `Conflict`.
        """
        await self._check_not_busy(conversation_id, visitor.owner)
        async with self.runs.permit(visitor, choices, conversation_id) as permit:
            _head, conversation, entries = await self._find_last(visitor.owner, conversation_id, entry_id)
            if not is_unfinished(last := entries[-1].note):
                raise Conflict(CHAT_CHANGED)
            spec = permit.connection.spec
            if not (spec.continues and unfinished_text([entry.message for entry in entries])):
                await permit.reserve(size_of([text]))
                return await self._start(conversation, [text], choices, permit), spec.label
            await permit.reserve(size_of([]))
            setup = await self.runs.set_up(conversation, choices, permit, (), resumed=True)
            run = setup.agent.continue_answer(setup.context, options=setup.options, journal=setup.journal)
            return await self._resume(run, setup, permit, last.run_id), ""

    async def finish_lost(self, visitor: Visitor, conversation_id: str, run_id: str) -> LiveRun:
        """Finish the answer of a run that was lost with its process, for a page that watched it.

        Its text is continued, if the model can. Otherwise the step in flight begins again. The choices are those of the
        lost run. Raises `Conflict` if this was done already, or only the visitor may decide.
        """
        conversation = await self._idle(visitor.owner, conversation_id)
        events = await self.store.runs.events(run_id, owner=visitor.owner)
        request, reason = request_of(events), events[-1].value.get(GOES_ON) if events else None
        entries = await last_turn(self.store, conversation)
        known = (run_id, request.instead_of, events[0].value.get("continues")) if request and reason else ()
        if request is None or not entries or entries[-1].note.run_id not in known:
            raise Conflict(CHAT_CHANGED)
        async with self.runs.permit(visitor, request.choices, conversation_id) as permit:
            can_continue = permit.connection.spec.continues and unfinished_text([entry.message for entry in entries])
            while not can_continue and entries and isinstance(entries[-1].message, ModelResponse):
                *entries, _left = entries
            if not entries or (not can_continue and entries[-1].note.run_id not in known):
                raise Conflict(CHAT_CHANGED)
            last = entries[-1]
            again, notice = ("", CONTINUED) if can_continue else (last.note.run_id, BEGUN_AGAIN)
            before = LostAnswer(lost=request.lost + (reason == LOST), instead_of=again, notice=notice)
            await permit.reserve(size_of([]))
            conversation = replace(conversation, head_id=last.id)
            setup = await self.runs.set_up(conversation, request.choices, permit, (), resumed=True, before=before)
            begin = setup.agent.continue_answer if can_continue else setup.agent.answer
            run = begin(setup.context, options=setup.options, journal=setup.journal)
            return await self._resume(run, setup, permit, last.note.run_id if can_continue else "")

    async def edit(
        self, visitor: Visitor, conversation_id: str | None, entry_id: str, text: str, choices: Choices
    ) -> LiveRun:
        """Replace the text of a message, on its own branch, and answer it."""
        if not text.strip():
            raise InputError(WRITE_FIRST)
        check_length(text)
        conversation = await self._idle(visitor.owner, conversation_id)
        found = await self.store.find(conversation, ids=[entry_id])
        if not any(map(is_prompt, found)) or not await self._is_shown(conversation, entry_id):
            raise Conflict(MESSAGE_GONE)
        [entry], notice = found, ""
        if compared := tuple(dict.fromkeys(entry.note.compared))[:MOST_MODELS]:
            all_ = sorted(await self.store.find(conversation, ids=compared), key=lambda one: compared.index(one.id))
            entries = [one for one in all_ if self.models.get(one.note.model)]
            gone = ", ".join(self.models.name_of(one.note.model) for one in all_ if one not in entries)
            notice = _("Not asked again, because it is not available any more: {models}.", models=gone) if gone else ""
            if len(entries) > 1:
                return await self._edit_for_all(visitor, conversation, entries, text, choices, notice)
        async with self.runs.permit(visitor, choices, conversation_id) as permit:
            conversation = await self._idle(visitor.owner, conversation_id)
            return await self._answer_again(conversation, entry, text, choices, permit, notice)

    async def undo(self, owner: str, conversation_id: str | None, entry_id: str) -> str:
        """Remove the last message and its answer. Return its typed text. Raises `Conflict` like `retry`."""
        entry, conversation, _ = await self._find_last(owner, conversation_id, entry_id)
        await self._check_not_busy(conversation_id, owner)  # an answer can have begun while the messages were read
        await self.store.save(branch(conversation, entry.parent_id))
        return typed_text(entry)

    async def files_of_last(self, owner: str, conversation_id: str | None, entry_id: str) -> AsyncGenerator[SentFile]:
        """Yield the files of the last message. Raises `Conflict` like `retry`."""
        entry, _, _ = await self._find_last(owner, conversation_id, entry_id)
        async for file in sent_files(entry, self.media, owner):
            yield file

    async def vote(self, owner: str, conversation_id: str | None, entry_id: str, choice: str) -> None:
        """Store which answer is the best one, and show the models' names. Raises `Conflict` and `InputError`.

        `choice` is the number of the answer among all messages to these models, as the page letters them.
        """
        for _attempt in range(SAVES):
            conversation = await self._idle(owner, conversation_id)
            found = [one for one in await self.store.find(conversation, ids=[entry_id]) if one.note.is_blind]
            if not found:
                raise Conflict(MESSAGE_GONE)
            if not has_hidden_model(found[0], conversation.votes):
                raise Conflict(_("You have voted on these answers already."))
            ids = [*dict.fromkeys(found[0].note.compared)]
            models = {one.id: one.note.model for one in await self.store.find(conversation, ids=ids[:MOST_MODELS])}
            given = [str(place) for place, id_ in enumerate(ids) if id_ in models]
            if len(given) < 2:
                raise InputError("There is no other answer to compare this one with.")
            if choice not in (*given, TIE, ALL_BAD):
                raise InputError(f"Send the number of an answer, {TIE!r} or {ALL_BAD!r} as choice.")
            with suppress(Conflict):
                best = str(given.index(choice)) if choice in given else choice
                vote = Vote(message=entry_id, models=tuple(models[ids[int(place)]] for place in given), choice=best)
                await self.store.save(replace(conversation, votes=(*conversation.votes, vote)))
                return
        raise Conflict(CHAT_CHANGED)

    async def votes(self, owner: str) -> Sequence[Vote]:
        """Return the votes in the owner's newest chats, the newest first."""
        found = list[Vote]()
        for offset in range(0, VOTED_CHATS, VOTES_PAGE):
            page = await self.store.list(owner, limit=VOTES_PAGE, offset=offset)
            found += [vote for conversation in page for vote in conversation.votes]
            if len(page) < VOTES_PAGE or len(found) >= MOST_VOTES:
                break
        return sorted(found, key=lambda vote: vote.at, reverse=True)[:MOST_VOTES]

    async def erase(self, owner: str, conversation_id: str | None, entry_id: str) -> None:
        """Erase a version of a message and all that follows it, see `Branches.erase`."""
        await self.branches.erase(owner, conversation_id, entry_id)
        if conversation_id is not None:
            self.runs.histories.forget(conversation_id)
            self.replies.forget(conversation_id)

    def forget(self, owner: str, conversations: Iterable[str]) -> None:
        """Forget what is only in memory: the owner's keys, settings and address, and these erased conversations."""
        self.models.keys.forget(owner)
        self.remembered.forget(owner)
        self.quota.forget(owner)
        for conversation in conversations:
            self.temporary.forget(conversation)

    async def aclose(self) -> None:
        """End the runs, save what they had, and close the connections."""
        await self.temporary.aclose()
        await self.live_runs.close()
        await self.titles.aclose()
        await self.list.aclose()
        await self.models.aclose()

    # Helpers

    async def _find_last(
        self, owner: str, conversation_id: str | None, entry_id: str
    ) -> tuple[Entry, Conversation, Sequence[Entry]]:
        """Return the visitor's last message, and the entries of its turn. Raises `Conflict` if its id differs."""
        conversation = await self._idle(owner, conversation_id)
        entries = await last_turn(self.store, conversation)
        return last_prompt(entries, entry_id), conversation, entries

    async def _conversation(
        self, owner: str, conversation_id: str | None, message: MessageId, folder: str
    ) -> Conversation:
        """Return the conversation that gets a message, see `get_or_begin`. A new one is in the folder.

        Raises `Conflict` if an answer is being written in it.
        """
        conversation = await get_or_begin(self.store, conversation_id, owner, message)
        await self._check_not_busy(conversation_id, owner)
        if not folder or conversation.revision:
            return conversation
        return replace(conversation, folder=(await self.runs.folders.get(owner, folder)).id)

    async def _is_shown(self, conversation: Conversation, entry_id: str) -> bool:
        """Return True if the entry is on the branch that is shown."""
        return not conversation.branches or conversation.head_id in await self.store.following(conversation, entry_id)

    async def _idle(self, owner: str, conversation_id: str | None) -> Conversation:
        """Return a stored conversation in which no answer is being written. Raises `Conflict` and `NotFound`.

        It is read first: an answer that begins elsewhere meanwhile changes it, and this one can't be saved any more.
        """
        if conversation_id is None:
            raise Conflict(MESSAGE_GONE)
        conversation = await self.store.get(conversation_id, owner=owner)
        await self._check_not_busy(conversation_id, owner)
        return conversation

    async def _save_summary(self, conversation: Conversation, summary: ChatSummary | None, cost: float) -> None:
        """Store the summary with what the conversation is now, after the answer that is being written."""
        for _attempt in range(SAVES):
            if live := await self.running.get(conversation.id, conversation.owner):
                await live.wait_for_end()
            conversation = await self.store.get(conversation.id, owner=conversation.owner)
            with suppress(Conflict):
                await self.store.save(replace(conversation, summary=summary, cost=conversation.cost + cost))
                return
        raise Conflict(CHAT_CHANGED)

    async def _check_not_busy(self, conversation_id: str | None, owner: str) -> None:
        """Raise `Conflict` while an answer is being written in this conversation."""
        if await self.running.is_busy(conversation_id, owner):
            raise Conflict(STILL_WRITING)

    async def _answer_again(
        self,
        conversation: Conversation,
        entry: Entry,
        text: str | None,
        choices: Choices,
        permit: AnswerPermit,
        notice: str = "",
    ) -> LiveRun:
        parts = await self._parts_again(conversation, entry, text, permit)
        return await self._start(branch(conversation, entry.parent_id), parts, choices, permit, notice=notice)

    async def _parts_again(
        self, conversation: Conversation, entry: Entry, text: str | None, permit: AnswerPermit
    ) -> Parts:
        """Return the parts of a stored message for the model of this permit, with another text if there is one."""
        permit.reservation.count_for_all()  # reads files
        [message] = await with_data(self.media, conversation.owner, [entry.message])
        parts: Parts = content_parts(replace(entry, message=message))
        if text is not None:
            parts = [text, *(parts[1:] if has_typed_text(entry) else parts)]  # typed text comes before files
        parts = await with_new_passages(without_passages(parts), permit.connection.spec)
        await permit.reserve(size_of(parts))
        return parts

    def _begin(self, setup: RunSetup, permit: AnswerPermit, *, is_beside: bool = False) -> LiveRun:
        """Begin the run of a new message."""
        run = setup.agent.run(_prompt_of(setup), context=setup.context, options=setup.options, journal=setup.journal)
        return self.runs.begin(run, setup, permit, is_beside=is_beside)

    async def _resume(self, run: Run, setup: RunSetup, permit: AnswerPermit, continues: str = "") -> LiveRun:
        """Begin a run that adds to the last turn. `continues` is the run whose text it continues."""
        live = self.runs.begin(run, setup, permit, resumed=True, continues=continues)
        await run_to_completion(setup.journal.wait_for_first_write(run))
        return live

    async def _start(
        self,
        conversation: Conversation,
        parts: Parts,
        choices: Choices,
        permit: AnswerPermit,
        message: MessageId = NO_MESSAGE_ID,
        notice: str = "",
    ) -> LiveRun:
        """Start the run and return it once the user's message is stored. The `notice` is shown with the answer."""
        conversation = await self.runs.fitting(conversation, choices, permit, estimate_tokens(parts))
        before = LostAnswer(notice=notice)
        setup = await self.runs.set_up(conversation, choices, permit, parts, message=message, before=before)
        live = self._begin(setup, permit)
        # If the caller is cancelled, the run goes on. Only the first write shows whether the message is stored.
        try:
            await run_to_completion(setup.journal.wait_for_first_write(live.run))
        except Exception:
            await live.wait_for_end()  # so that the next message is not told that an answer is being written
            raise
        self.replies.forget(conversation.id)
        return live
