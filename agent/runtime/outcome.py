"""The outcome of a run: its finish reason, and the sentence that explains it."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from pydantic_ai.messages import ModelResponse

from agent.errors import AgentError
from agent.i18n.text import LocalizedText, _, joined
from agent.limits import Limit, Limits, explain_filter, explain_limit
from agent.responses import fix_surrogates
from agent.result import FinishReason


class Outcome(NamedTuple):
    """The finish reason of a run and the sentence that explains it.

    `failure` is the exception that ended the run, if it has a sentence for people.
    """

    reason: FinishReason
    detail: str = ""
    failure: AgentError | None = None

    @classmethod
    def from_response(cls, response: ModelResponse, limits: Limits) -> "Outcome":
        """Return the outcome for the model's last response."""
        match response.finish_reason:
            case "content_filter":
                return cls("content_filter", explain_filter(response.provider_details or {}))
            case "length":
                return cls("length", explain_limit("truncated", limits))
            case _:
                return cls("stop")

    @classmethod
    def from_limit(cls, limit: Limit, limits: Limits) -> "Outcome":
        """Return the outcome for a limit that was reached."""
        return cls("limit", explain_limit(limit, limits))

    @classmethod
    def from_failure(cls, failure: AgentError) -> "Outcome":
        """Return the outcome for an exception with a sentence for people."""
        return cls("error", failure.text, failure)

    @classmethod
    def from_store_failure(cls, failure: BaseException | None) -> "Outcome":
        """Return the outcome of a run that could not be saved. `failure` None: only the log has the reason."""
        match failure:
            case None:
                reason = INTERNAL_ERROR.detail
            case AgentError():
                reason = failure.text
            case asyncio.CancelledError():
                reason = _("writing it was interrupted")
            case _:
                reason = _("the store failed")
        known = failure if isinstance(failure, AgentError) else None
        return cls("error", _("This answer could not be saved: {reason}", reason=reason), known)

    @classmethod
    def from_cancellation(cls, reason: str | None, left_running: Sequence[str]) -> "Outcome":
        """Return the outcome of a cancelled run, with the reason and the names of the tools that are left running."""
        left = (_("The tool {name} cannot be interrupted and was left running.", name=name) for name in left_running)
        return cls("cancelled", joined([_cancel_reason(reason), *left]))


INTERNAL_ERROR = Outcome("error", _("Something went wrong in this program; the details are in its log."))
NOT_SEALED = Outcome("error", _("What this run waits for cannot be kept, so it has ended."))
KNOWN_REASONS = {
    "user_request": _("Stopped."),
    "client_disconnect": _("Stopped after you left the page."),
    "reader_left": _("Stopped: the reader went away."),
    "shutdown": _("Stopped because the server was shut down."),
    "taken_over": _("Another server process goes on with this answer."),
}
"""The reasons for cancelling that have a sentence. Any other reason is shown as it was given."""
LONGEST_REASON = 200
"""The most characters of a reason that are shown."""


def _cancel_reason(reason: str | None) -> LocalizedText:
    """Return the reason as one line of limited length."""
    line = " ".join(fix_surrogates(str(reason or "")).split())
    if not line or line in KNOWN_REASONS:
        return KNOWN_REASONS[line or "user_request"]
    short = line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"
    return _("Stopped: {reason}.", reason=short.rstrip("."))
