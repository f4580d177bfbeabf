"""The running answers and the pages that watch them. A public page cancels a run that nobody watches any more."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from time import monotonic

from agent.errors import Conflict, InputError
from agent.i18n import _
from agent.media.store import MediaStore
from agent.providers import acting_for
from agent.run import Run
from agent.web.chat.journal import Omitted
from agent.web.chat.transcript import Bubble, fold_responses

UPDATE_SECONDS = 0.1
"""Seconds between two updates of a page, more if a bubble is long. The last update is not delayed."""
CHARACTERS_PER_SECOND = 80_000
"""Characters of a bubble per second of pause between two updates.

A browser redraws the whole bubble each time, which takes 50 ms at 12,000 characters, and the last update waits for the
one before it.
"""
IDLE_SECONDS = 1.0
"""Seconds after which a silent run updates the page anyway, so that the server notices if the page is gone."""

log = logging.getLogger(__name__)

CloseCallback = Callable[[], Awaitable[None]]

STILL_WRITING = _("An answer is still being written. Stop it, or wait for it to end.")


class LiveRun:
    """A run and the number of pages that watch it. `resumed` is True if it continues a suspended turn.

    The run is cancelled if nobody has watched it for `grace` seconds; None: it always finishes. Files that tools return
    are shown under their URLs in `media`.
    """

    def __init__(
        self,
        run: Run,
        conversation: str,
        owner: str,
        grace: float | None,
        unsent: Omitted,
        media: MediaStore | None = None,
        *,
        resumed: bool = False,
    ) -> None:
        self._media = media
        self.run, self.conversation, self.owner, self.omitted, self.resumed = run, conversation, owner, unsent, resumed
        self.started_at, self._grace = monotonic(), grace
        self._watchers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._set_timer()

    async def bubbles(self) -> AsyncGenerator[list[Bubble]]:
        """Yield all bubbles after each update while the answer is written, and once more when it has ended."""
        run, bubbles, seen = self.run, list[Bubble](), 0
        with self.watched():
            while True:
                new, done = run.responses[seen:], run.done
                times = run.emitted_at[seen : seen + len(new)]
                seen += len(new)
                if self._media is not None:
                    new = [await self._media.with_urls(self.owner, self.conversation, one) for one in new]
                fold_responses(bubbles, new, times)
                yield bubbles
                if done:
                    return
                drawn = len(bubbles[-1].text) if bubbles else 0
                if not await run.wait_until_done(
                    max(UPDATE_SECONDS, min(4 * UPDATE_SECONDS, drawn / CHARACTERS_PER_SECOND))
                ) or seen == len(run.responses):
                    await run.wait_for_update(seen, timeout=IDLE_SECONDS)

    @contextmanager
    def watched(self) -> Generator[None]:
        """Count a watching page within the block. The grace period, if any, begins when the last page leaves."""
        self._watchers += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            yield
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                self._set_timer()

    def _set_timer(self) -> None:
        if self._grace is not None and not self.run.done:
            self._timer = asyncio.get_running_loop().call_later(self._grace, self.run.cancel, "client_disconnect")

    def cancel_timer(self) -> None:
        """Stop the timer, because the run has ended."""
        if self._timer is not None:
            self._timer.cancel()


class LiveRuns:
    """The running answers, at most one per conversation. Owns the tasks that wait for their ends.

    `grace` is the time in seconds after which an unwatched run is cancelled.
    """

    def __init__(self, grace: float | None, media: MediaStore | None = None) -> None:
        self._grace, self._media = grace, media
        self._runs: dict[str, LiveRun] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self.closing = False

    def get(self, conversation: str | None, owner: str) -> LiveRun | None:
        """Return the running answer of this owner's conversation, if there is one."""
        found = self._runs.get(conversation or "")
        return found if found is not None and found.owner == owner else None

    def start(
        self,
        conversation: str,
        owner: str,
        run: Run,
        unsent: Omitted | None = None,
        closing: CloseCallback | None = None,
        *,
        resumed: bool = False,
    ) -> LiveRun:
        """Start the run as a task of the server. `closing` is called after its end.

        Raises `Conflict` if the conversation has a running answer already, or if the server is shutting down.
        """
        if self.closing:
            raise Conflict(_("The server is going down. Try again in a minute; what you typed stays here."))
        if conversation in self._runs:
            raise Conflict(STILL_WRITING)
        with acting_for(owner):
            run.start()
        live = self._runs[conversation] = LiveRun(
            run, conversation, owner, self._grace, unsent or Omitted(), self._media, resumed=resumed
        )
        task = asyncio.create_task(self._end(live, closing))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)
        task.add_done_callback(lambda _: self._remove(live))  # also if the task never took its first step
        return live

    def is_busy(self, conversation: str) -> bool:
        """Return True if an answer is being written in this conversation."""
        return conversation in self._runs

    @property
    def count(self) -> int:
        """The number of answers that are being written."""
        return len(self._runs)

    async def close(self, seconds: float = 0.0) -> None:
        """Start no more runs, let running ones go on for `seconds`, cancel the rest, and wait until all is stored.

        Can be called again meanwhile to end them sooner.
        """
        self.closing = True
        if self._ends and seconds:
            await asyncio.wait(self._ends, timeout=seconds)
        for live in self._runs.values():
            live.run.cancel("shutdown")
        if self._ends:
            await asyncio.wait(self._ends)

    async def _end(self, live: LiveRun, closing: CloseCallback | None) -> None:
        """Wait for the end, then remove the run first, so that a failure here cannot leave its conversation busy."""
        try:
            await live.run
        except InputError:
            pass  # the run was refused; the pages that watch it show why
        except Exception:
            log.exception("the run %s could not be waited for", live.run.id)
        finally:
            self._remove(live)
            live.cancel_timer()
            if closing is not None:
                await closing()

    def _remove(self, live: LiveRun) -> None:
        if self._runs.get(live.conversation) is live:
            del self._runs[live.conversation]
