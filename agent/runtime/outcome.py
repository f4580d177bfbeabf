"""The outcome of a run: its finish reason, and the sentence that explains it."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from pydantic_ai.messages import ModelResponse

from agent.errors import AgentError
from agent.i18n import LocalizedText, in_english
from agent.limits import Limit, Limits, explain_filter, explain_limit, limit_text
from agent.responses import fix_surrogates
from agent.result import FinishReason


class Outcome(NamedTuple):
    """The finish reason of a run, the sentence that explains it, and that sentence as `LocalizedText` if it has a key.

    `failure` is the exception that ended the run, if it has a sentence for people.
    """

    reason: FinishReason
    detail: str = ""
    sayings: tuple[LocalizedText, ...] = ()
    failure: AgentError | None = None

    @classmethod
    def from_response(cls, response: ModelResponse, limits: Limits) -> "Outcome":
        """Return the outcome for the model's last response."""
        match response.finish_reason:
            case "content_filter":
                return cls("content_filter", explain_filter(response.provider_details or {}))
            case "length":
                return cls("length", explain_limit("truncated", limits), limit_text("truncated", limits))
            case _:
                return cls("stop")

    @classmethod
    def from_limit(cls, limit: Limit, limits: Limits) -> "Outcome":
        """Return the outcome for a limit that was reached."""
        return cls("limit", explain_limit(limit, limits), limit_text(limit, limits))

    @classmethod
    def from_failure(cls, failure: AgentError) -> "Outcome":
        """Return the outcome for an exception with a sentence for people."""
        return cls("error", str(failure), failure.sayings, failure)

    @classmethod
    def from_store_failure(cls, failure: BaseException | None) -> "Outcome":
        """Return the outcome of a run that could not be saved. `failure` None: only the log has the reason."""
        match failure:
            case None:
                reason, text = LocalizedText("broken_program"), INTERNAL_ERROR.detail
            case AgentError():
                reason, text = str(failure), str(failure)
            case asyncio.CancelledError():
                reason, text = LocalizedText("write_interrupted"), SENTENCES["write_interrupted"]
            case _:
                reason, text = LocalizedText("store_failed"), SENTENCES["store_failed"]
        known = failure if isinstance(failure, AgentError) else None
        return cls(
            "error", SENTENCES["unsaved"].format(reason=text), (LocalizedText("unsaved", {"reason": reason}),), known
        )

    @classmethod
    def from_cancellation(cls, reason: str | None, free_after: float, left_running: Sequence[str]) -> "Outcome":
        """Return the outcome of a cancelled run, with the reason and the names of the tools that are left running.

        `free_after` is the time in seconds until the connection to the model server was closed.
        """
        stopped = LocalizedText("stopped", {"why": _why(reason), "milliseconds": f"{free_after * 1000:.0f}"})
        sayings = (stopped, *(LocalizedText("left_running", {"name": name}) for name in left_running))
        return cls("cancelled", " ".join(in_english(SENTENCES, one) for one in sayings), sayings)


INTERNAL_ERROR = Outcome(
    "error", "Something went wrong in this program; the details are in its log.", (LocalizedText("broken_program"),)
)
NOT_SEALED = Outcome("error", "What this run waits for cannot be kept, so it has ended.", (LocalizedText("unsealed"),))
SENTENCES = {
    "stopped": "{why}; the model server was free after {milliseconds} ms.",
    "left_running": "The tool {name} cannot be interrupted and was left running.",
    "user_request": "Stopped",
    "client_disconnect": "Stopped because nobody was watching any more",
    "shutdown": "Stopped because the server was shut down",
    "stopped_because": "Stopped: {reason}",
    "unsaved": "This answer could not be saved: {reason}",
    "store_failed": "the store failed",
    "write_interrupted": "writing it was interrupted",
}
KNOWN_REASONS = ("user_request", "client_disconnect", "shutdown")
"""The reasons for cancelling that have a sentence. Any other reason is shown as it was given."""
LONGEST_REASON = 200
"""The most characters of a reason that are shown."""


def _why(reason: str | None) -> LocalizedText:
    """Return the reason as one line of limited length."""
    line = " ".join(fix_surrogates(str(reason or "")).split())
    if not line:
        return LocalizedText("user_request")
    if line in KNOWN_REASONS:
        return LocalizedText(line)
    short = line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"
    return LocalizedText("stopped_because", {"reason": short})
