"""Checks whether the app can answer messages, for supervisors, and how late its event loop is.

Gives a reason, but nothing about the machine.
"""

import asyncio
import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

from agent.errors import AgentError, NotFound
from agent.files.store import MediaStore
from agent.history import Conversation, HistoryStore, new_id, now
from agent.models.catalog import Catalog
from agent.providers.connection import Endpoint, Models, default_endpoint
from agent.settings import ROOT
from agent.web.chat.expiry import PROBE

LOOP_BEAT_SECONDS = 0.05
"""Seconds between two beats of the loop, and between two looks at them."""
LOOP_LATE_SECONDS = 0.5
"""A loop that is later than this is logged."""
LAG_LOG_SECONDS = 10.0
"""The least seconds between two lines in the log."""
LAG_WINDOW_SECONDS = 60.0
FRAMES = 3
"""The innermost places in the code that a line names."""

log = logging.getLogger(__name__)


class Watchdog:
    """A heartbeat of the event loop, and a thread that looks at it."""

    def __init__(self) -> None:
        self._beat_at, self._logged_at = monotonic(), -LAG_LOG_SECONDS
        self._lags = deque[tuple[float, float]]()
        """The times and lags of the last minute that no later one exceeds, the longest first."""
        self._over, self._loop_thread = threading.Event(), 0

    @property
    def longest_lag(self) -> float:
        """The longest lag of the last minute in seconds."""
        self._note(0.0)
        return self._lags[0][1]

    async def run(self) -> None:
        """Beat until this is cancelled."""
        self._loop_thread, self._beat_at = threading.get_ident(), monotonic()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(LOOP_BEAT_SECONDS)
                now = monotonic()
                self._note(max(0.0, now - self._beat_at - LOOP_BEAT_SECONDS))
                self._beat_at = now
        finally:
            self._over.set()

    def _note(self, lag: float) -> None:
        now = monotonic()
        while self._lags and (self._lags[-1][1] <= lag):
            self._lags.pop()
        self._lags.append((now, lag))
        while self._lags[0][0] <= now - LAG_WINDOW_SECONDS:
            self._lags.popleft()

    def _watch(self) -> None:
        while not self._over.wait(LOOP_BEAT_SECONDS):
            now = monotonic()
            lag = now - self._beat_at - LOOP_BEAT_SECONDS
            if lag > LOOP_LATE_SECONDS and now - self._logged_at >= LAG_LOG_SECONDS:
                self._logged_at = now
                log.warning("the event loop has been held up for %.1f s at %s", lag, self._place())

    def _place(self) -> str:
        """Return the innermost calls of the loop's thread, without any value of them."""
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        calls = traceback.extract_stack(frame)[-FRAMES:] if frame is not None else []
        return " < ".join(f"{_short(call.filename)}:{call.lineno} {call.name}" for call in reversed(calls))


def _short(path: str) -> str:
    found = Path(path)
    return str(found.relative_to(ROOT)) if found.is_relative_to(ROOT) else "/".join(found.parts[-2:])


STORE_SECONDS = 3.0
REMEMBERED_SECONDS = 5.0
"""Seconds for which the last answer of the model server or of a write counts, so that health checks are no load."""
PROBE_PERIOD = timedelta(days=1)
"""The time after which such a record expires that its process no longer writes."""


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
    ) -> None:
        """Take the parts to check.

        `ask` sends any request to a model server and raises an `AgentError` if it does not answer. `queue_problem`
        returns why the page's events are not processed, or "". `watchdog` has to be run beside the page.
        """
        self._store, self._media, self._models = store, media, models
        self._ask, self._queue_problem = ask, queue_problem
        self._probe, self._wrote_at = Conversation(owner=PROBE), 0.0
        self._writing: asyncio.Task[bool] | None = None
        self.watchdog = Watchdog()
        hosted = [provider for provider in catalog.providers.values() if provider.base_url]
        self._hosted = any(default_endpoint(provider).api_key for provider in hosted)
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
