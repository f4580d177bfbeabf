"""The end of a run: its reason, with the sentence that says why."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from pydantic_ai.messages import ModelResponse

from agent.errors import AgentError
from agent.guardrails import Limit, Limits, explained, said, withheld
from agent.responses import whole
from agent.result import FinishReason
from agent.sayings import Saying, english


class Ending(NamedTuple):
    """How a run ends: its reason, the sentence that says why, and that sentence by name, where it is one of ours.

    `failure` is the exception it ended with, where that has a sentence for people.
    """

    reason: FinishReason
    detail: str = ""
    sayings: tuple[Saying, ...] = ()
    failure: AgentError | None = None


BROKEN = Ending(
    "error", "Something went wrong in this program; the details are in its log.", (Saying("broken_program"),)
)
UNSEALED = Ending("error", "What this run waits for cannot be kept, so it has ended.", (Saying("unsealed"),))
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
"""Characters of a reason that are shown."""


def by_response(response: ModelResponse, limits: Limits) -> Ending:
    """The ending that the model's last response is."""
    match response.finish_reason:
        case "content_filter":
            return Ending("content_filter", withheld(response.provider_details or {}))
        case "length":
            return Ending("length", explained("truncated", limits), said("truncated", limits))
        case _:
            return Ending("stop")


def by_limit(limit: Limit, limits: Limits) -> Ending:
    """The ending that a limit is."""
    return Ending("limit", explained(limit, limits), said(limit, limits))


def by_failure(failure: AgentError) -> Ending:
    """The ending that a failure is which has a sentence of its own."""
    return Ending("error", str(failure), failure.sayings, failure)


def by_store(failure: BaseException | None) -> Ending:
    """The ending of a run whose outcome could not be saved; None: for a reason that only the log has."""
    match failure:
        case None:
            reason, text = Saying("broken_program"), BROKEN.detail
        case AgentError():
            reason, text = str(failure), str(failure)
        case asyncio.CancelledError():
            reason, text = Saying("write_interrupted"), SENTENCES["write_interrupted"]
        case _:
            reason, text = Saying("store_failed"), SENTENCES["store_failed"]
    known = failure if isinstance(failure, AgentError) else None
    return Ending("error", SENTENCES["unsaved"].format(reason=text), (Saying("unsaved", {"reason": reason}),), known)


def by_cancelling(reason: str | None, free_after: float, left_running: Sequence[str]) -> Ending:
    """The ending of a cancelled run: why, when the connection to the server was closed, and which tools go on.

    `free_after` is in seconds.
    """
    stopped = Saying("stopped", {"why": _why(reason), "milliseconds": f"{free_after * 1000:.0f}"})
    sayings = (stopped, *(Saying("left_running", {"name": name}) for name in left_running))
    return Ending("cancelled", " ".join(english(SENTENCES, one) for one in sayings), sayings)


def _why(reason: str | None) -> Saying:
    """The reason in one line of bounded length."""
    line = " ".join(whole(str(reason or "")).split())
    if not line:
        return Saying("user_request")
    if line in KNOWN_REASONS:
        return Saying(line)
    short = line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"
    return Saying("stopped_because", {"reason": short})
