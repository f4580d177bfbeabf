"""The progress of a download, in a terminal or in a log."""

import sys
import time
from collections.abc import Callable


class ProgressBar:
    """Progress in bytes: one rewritten line if `say` is `print` on a terminal, else a line for every tenth."""

    def __init__(self, label: str, say: Callable[[str], None]) -> None:
        self._label, self._say = label, say
        self._rewrites = say is print and sys.stdout.isatty()
        self._tenth, self._shown = 0, 0.0

    def __call__(self, have: int, total: int) -> None:
        """Show that `have` of `total` bytes have arrived."""
        done = min(1.0, have / total) if total else 0.0
        amount = f"{have // 10**6} of {total // 10**6} MB"
        if self._rewrites and time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            print(f"\r  [{'#' * round(done * 30):30}] {done:4.0%}  {amount} ", end="", flush=True)
        elif not self._rewrites and int(done * 10) > self._tenth:
            self._tenth = int(done * 10)
            self._say(f"  {self._label}: {self._tenth * 10} %, {amount}")

    def close(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r" + " " * 70, end="\r", flush=True)
