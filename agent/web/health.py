"""Checks whether the app can answer messages, for supervisors. Gives a reason, but nothing about the machine."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any

from agent.errors import AgentError
from agent.history import HistoryStore, new_id
from agent.models.catalog import Catalog
from agent.providers import Endpoint, Models, default_endpoint
from agent.web.canary import Canary
from agent.web.watchdog import Watchdog

STORE_SECONDS = 3.0
REMEMBERED_SECONDS = 5.0
"""Seconds for which the model server's last answer counts, so that health checks put no load on it."""


class Health:
    """The health of the app. Owns the remembered answer of the model server."""

    def __init__(
        self,
        store: HistoryStore,
        models: Models,
        catalog: Catalog,
        ask: Callable[[Endpoint], Awaitable[Any]],
        queue_problem: Callable[[], str],
        canary: Canary,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """Take the parts to check.

        `ask` sends any request to a model server and raises an `AgentError` if it does not answer. `queue_problem`
        returns why the page's events are not processed, or "". `canary` knows whether visitors are separated.
        `watchdog` has to be run beside the page.
        """
        self._store, self._models, self._ask, self._queue_problem = store, models, ask, queue_problem
        self.canary, self.watchdog = canary, Watchdog()
        hosted = [provider for provider in catalog.providers.values() if provider.base_url]
        self._hosted = any(default_endpoint(provider, env).api_key for provider in hosted)
        self._last_answer: tuple[float, Endpoint, bool] | None = None
        self._lock = asyncio.Lock()

    async def problem(self) -> str:
        """Return a sentence on why the app cannot answer messages now, or ""."""
        if problem := self.canary.problem or self._queue_problem():
            return problem
        if not await self._store_answers():
            return "The history store does not answer."
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
