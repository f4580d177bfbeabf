"""Log lines of libraries: those with what visitors say are left out, and those that anybody can cause are few.

Loggers that write what visitors say stay at INFO whatever level is set for the rest.
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
    """Raise those loggers to INFO if the root logger has a lower level."""
    for name in WITH_CONTENT:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


FAILURE_SECONDS = 60.0
"""Between two log entries about the same failure of a request, each of which has kilobytes of traceback."""
MOST_FAILURES = 100
"""Different failures that are told apart."""


class FewFailures(logging.Filter):
    """Lets a failure of a request through once a minute. The next entry says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log this entry. Failures of one type at one place are the same."""
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
    """Limit what uvicorn logs about requests that fail."""
    logging.getLogger("uvicorn.error").addFilter(FewFailures())
