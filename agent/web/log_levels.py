"""Keeps visitors' messages out of library logs, and limits log lines that anybody can cause.

Loggers that write what visitors send stay at INFO, whatever level is set for the rest.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from traceback import extract_tb

WITH_CONTENT = (
    "anthropic",
    "google_genai",
    "gradio",
    "httpcore2",
    "httpx2",
    "mcp",
    "openai",
    "python_multipart",
)


def keep_content_out_of_logs() -> None:
    """Raise the loggers of `WITH_CONTENT` to INFO if the root logger has a lower level."""
    for name in WITH_CONTENT:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


LOG_SECONDS = 60.0
"""The length of the period in which lines of one kind are counted."""
MAX_FAILURES = 1
"""Entries about the same failed request in a period. Each has kilobytes of traceback."""
MAX_LINES = 10
"""The most other lines that one place in the code logs in a period."""
MAX_KINDS = 200
"""The number of different kinds that are counted."""


class LogLimit(logging.Filter):
    """Passes a few warnings and errors of each kind in each period. The next one says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._periods = OrderedDict[tuple[str, str], _Period]()
        self._lock = Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if this entry is to be logged. A record keeps its answer, because several handlers ask."""
        if record.levelno < logging.WARNING:
            return True
        passes: bool | None = getattr(record, "passes_limit", None)
        if passes is None:
            passes = record.passes_limit = self._count(record)
        return passes

    def _count(self, record: logging.LogRecord) -> bool:
        """Count an entry. Failures of one type at one place are one kind, as are lines logged at one place."""
        kind, most = _kind(record)
        with self._lock:
            now = monotonic()
            period = self._periods.get(kind)
            if period is None or now - period.began >= LOG_SECONDS:
                left_out = period.entries - most if period else 0
                self._periods.pop(kind, None)
                self._periods[kind] = period = _Period(now)
                if left_out > 0:
                    record.msg = f"{record.getMessage().rstrip()} ({left_out} more like it since the last entry)"
                    record.args = ()
            if len(self._periods) > MAX_KINDS:
                self._periods.popitem(last=False)
            period.entries += 1
            return period.entries <= most


@dataclass(slots=True)
class _Period:
    began: float
    entries: int = 0


def _kind(record: logging.LogRecord) -> tuple[tuple[str, str], int]:
    """Return the kind of an entry, and how many of it pass in a period."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:  # the place, because a message can contain what a client sent
        return ("", f"{record.pathname}:{record.lineno}"), MAX_LINES
    last = extract_tb(error.__traceback__, limit=-1)
    return (type(error).__name__, f"{last[0].filename}:{last[0].lineno}" if last else ""), MAX_FAILURES


def limit_log() -> None:
    """Limit the warnings and errors of this process. Call it after uvicorn has set up its own logging."""
    limit = LogLimit()
    for logger in (logging.getLogger(), logging.getLogger("uvicorn")):
        for handler in logger.handlers:
            handler.addFilter(limit)
