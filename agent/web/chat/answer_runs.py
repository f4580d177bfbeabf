"""Prepares and begins the runs that write answers: permit, history, journal, and the title afterwards."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from pydantic_ai.messages import UserContent

from agent.arguments import embedder_of
from agent.history import HistoryStore, Record
from agent.media.store import MediaStore
from agent.run import Run
from agent.settings import Settings
from agent.tools import Tool, Toolset
from agent.web.chat.answer_permit import AnswerPermit, permit_answer
from agent.web.chat.choices import Choices
from agent.web.chat.expiry import IsBusy
from agent.web.chat.live_runs import LiveRun, LiveRuns
from agent.web.chat.message_id import NO_MESSAGE_ID, MessageId
from agent.web.chat.model_menu import ModelMenu
from agent.web.chat.rate_limit import RateLimiter
from agent.web.chat.recent_histories import RecentHistories
from agent.web.chat.recent_vectors import RecentVectors
from agent.web.chat.run_request import RunRequest
from agent.web.chat.run_setup import NOT_LOST, LostAnswer, RunSetup, set_up_run
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.temporary import TemporaryChats
from agent.web.chat.temporary_memory import is_temporary
from agent.web.chat.titles import Titles
from agent.web.chat.visitor import Visitor


class AnswerRuns:
    """What all runs of answers share. `is_in_use` tells whether a conversation must not be erased."""

    def __init__(
        self,
        settings: Settings,
        store: HistoryStore,
        media: MediaStore,
        models: ModelMenu,
        tools: Sequence[Tool | Toolset],
        *,
        live_runs: LiveRuns,
        rate_limiter: RateLimiter,
        quota: StorageQuota,
        titles: Titles,
        temporary: TemporaryChats,
        is_in_use: IsBusy,
    ) -> None:
        self.models, self.live_runs, self.histories = models, live_runs, RecentHistories(store)
        self._settings, self._media, self._tools = settings, media, tuple(tools)
        self.rate_limiter = rate_limiter
        self._quota, self._titles, self._is_in_use = quota, titles, is_in_use
        self.temporary = temporary
        self.vectors = RecentVectors(embedder_of(settings.embeddings))

    def permit(
        self, visitor: Visitor, choices: Choices, conversation: str | None
    ) -> AbstractAsyncContextManager[AnswerPermit]:
        """Return the permit for one answer in this conversation. Get it before reading anything large."""
        quota = self.temporary if is_temporary(conversation) else self._quota
        return permit_answer(self.rate_limiter, self.models, quota, self._is_in_use, visitor, choices)

    async def set_up(
        self,
        record: Record,
        choices: Choices,
        permit: AnswerPermit,
        new_parts: Sequence[UserContent],
        *,
        resumed: bool = False,
        before: LostAnswer = NOT_LOST,
        message: MessageId = NO_MESSAGE_ID,
    ) -> RunSetup:
        """Prepare a run that continues `record`. See `set_up_run`."""
        own_key = self.models.has_typed_key(record.owner, permit.connection.spec)
        lost, again = before.lost, before.instead_of
        return await set_up_run(
            record,
            RunRequest(choices=choices, resumed=resumed, lost=lost, instead_of=again, own_key=own_key),
            permit.connection,
            settings=self._settings,
            histories=self.histories,
            media=self._media,
            tools=self._tools,
            new_parts=new_parts,
            notice=before.notice,
            message=message,
            vectors=self.vectors.of(record.id),
        )

    def begin(
        self, run: Run, setup: RunSetup, permit: AnswerPermit, *, resumed: bool = False, continues: str = ""
    ) -> LiveRun:
        """Begin the run. From then on, its end releases the permit. See `LiveRuns.start`."""
        spec = permit.connection.spec
        has_no_title = self._titles.is_wanted(setup.journal.record, spec)

        async def end() -> None:
            if has_no_title:
                self._titles.begin(permit.visitor, setup.journal.record, spec.id, run)
            await permit.aclose()

        live = self.live_runs.start(run, setup.journal, end, resumed=resumed, continues=continues)
        if has_no_title:
            self._titles.expect(live.conversation)
        permit.hand_over()
        return live
