"""Checks whether the app can answer messages, for supervisors. Gives a reason, but nothing about the machine."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any

from agent.errors import AgentError, NotFound
from agent.files.store import MediaStore
from agent.history import Conversation, HistoryStore, new_id, now
from agent.models.catalog import Catalog
from agent.providers.connection import Endpoint, Models, default_endpoint
from agent.web.chat.orphaned_files import PROBE
from agent.web.watchdog import Watchdog

STORE_SECONDS = 3.0
REMEMBERED_SECONDS = 5.0
"""Seconds for which the last answer of the model server or of a write counts, so that health checks are no load."""
PROBE_PERIOD = timedelta(days=1)
"""The time after which such a record expires that its process no longer writes."""

log = logging.getLogger(__name__)


class Health:
    """The health of the app. Owns the remembered answer of the model server."""

    def __init__(
        self,
        store: HistoryStore,
        media: MediaStore,
        models: Models,
        catalog: Catalog,
        ask: Callable[[Endpoint], Awaitable[Any]],
        queue_problem: Callable[[], str],
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """Take the parts to check.

        `ask` sends any request to a model server and raises an `AgentError` if it does not answer. `queue_problem`
        returns why the page's events are not processed, or "". `watchdog` has to be
        run beside the page.
        """
        self._store, self._media, self._models = store, media, models
        self._ask, self._queue_problem = ask, queue_problem
        self._probe, self._wrote_at = Conversation(owner=PROBE), 0.0
        self._writing: asyncio.Task[bool] | None = None
        self.watchdog = Watchdog()
        hosted = [provider for provider in catalog.providers.values() if provider.base_url]
        self._hosted = any(default_endpoint(provider, env).api_key for provider in hosted)
        self._last_answer: tuple[float, Endpoint, bool] | None = None
        self._lock = asyncio.Lock()

    async def problem(self) -> str:
        """Return a sentence on why the app cannot answer messages now, or ""."""
        if problem := self._queue_problem():
            return problem
        if not await self._store_answers():
            return "The history store does not answer."
        if not await self._can_store():
            return "Nothing can be stored."
        if not self._hosted and not await self._model_answers():
            is_starting = not self._models.served and self._models.status.phase != "failed"
            return "No model answers yet." if is_starting else "No model answers."
        return ""

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._store.list(new_id(), limit=1)
        except (AgentError, TimeoutError):
            return False
        return True

    async def _can_store(self) -> bool:
        """Return True if a record and a file could be written now, or some seconds ago. A write that hangs says no."""
        if self._writing is None or (self._writing.done() and monotonic() - self._wrote_at > REMEMBERED_SECONDS):
            self._writing, self._wrote_at = asyncio.create_task(self._write(), context=Context()), monotonic()
        await asyncio.wait([self._writing], timeout=STORE_SECONDS)
        return self._writing.done() and self._writing.result()

    async def _write(self) -> bool:
        try:
            for _attempt in range(2):
                written = replace(self._probe, expires_at=now() + PROBE_PERIOD)
                try:
                    self._probe = await self._store.save(written)
                    await self._media.check_writable()
                    return True
                except NotFound:  # it has expired
                    self._probe = Conversation(owner=PROBE)
        except (AgentError, OSError) as error:
            log.error("nothing can be stored: %s", error)
        return False

    async def _model_answers(self) -> bool:
        """Return True if the first model's server answers now. A server that the user named can have gone since."""
        served = self._models.served
        if not served:
            return False
        endpoint = served[0].endpoint
        async with self._lock:
            if (
                self._last_answer is None
                or self._last_answer[1] != endpoint
                or monotonic() - self._last_answer[0] > REMEMBERED_SECONDS
            ):
                try:
                    await self._ask(endpoint)
                    answers = True
                except AgentError:
                    answers = False
                self._last_answer = monotonic(), endpoint, answers
            return self._last_answer[2]
