"""Keeps visitors' messages out of library logs, and limits log lines that anybody can cause.

Loggers that write what visitors send stay at INFO, whatever level is set for the rest.
"""

import logging
from time import monotonic
from traceback import extract_tb

WITH_CONTENT = (
    "aiosqlite",
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


FAILURE_SECONDS = 60.0
"""Seconds between two log entries about the same failed request. Each has kilobytes of traceback."""
MOST_FAILURES = 100
"""The number of different failures that are counted separately."""


class FewFailures(logging.Filter):
    """Passes each kind of request failure once a minute. The next entry says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if this entry is to be logged. Failures of one type at one place are the same."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        last = extract_tb(error.__traceback__, limit=-1)
        where = f"{last[0].filename}:{last[0].lineno}" if last else ""
        key, now = (type(error).__name__, where), monotonic()
        at, left_out = self._seen.get(key, (now - FAILURE_SECONDS, 0))
        if now - at < FAILURE_SECONDS:
            self._seen[key] = at, left_out + 1
            return False
        if len(self._seen) >= MOST_FAILURES:
            self._seen.clear()
        self._seen[key] = now, 0
        if left_out:
            record.msg = f"{record.getMessage().rstrip()} ({left_out} more like it since the last entry)"
            record.args = ()
        return True


def log_few_failures() -> None:
    """Limit what uvicorn logs about failed requests."""
    logging.getLogger("uvicorn.error").addFilter(FewFailures())
