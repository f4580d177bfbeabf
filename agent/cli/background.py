"""An event loop in a thread of its own, for a main thread that reads the keyboard and must hear Ctrl-C."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Background:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="runs", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, _T], interrupted: Callable[[], None] | None = None) -> _T:
        """Do the work there. Ctrl-C calls `interrupted` and waits on; without it, the work is given up."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                if interrupted is None:
                    future.cancel()
                    raise
                interrupted()

    def close(self) -> None:
        """End the loop, once nothing that matters runs there."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
