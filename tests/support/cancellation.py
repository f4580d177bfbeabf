"""Two ways to cancel a run."""

import threading

from agent import Run


def by_loop(run: Run) -> None:
    """Cancel the run from its event loop."""
    run.cancel()


def by_thread(run: Run) -> None:
    """Cancel the run from another thread."""
    thread = threading.Thread(target=run.cancel)
    thread.start()
    thread.join()
