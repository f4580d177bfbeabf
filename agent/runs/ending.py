"""How a run ends: its reason, with the sentence that says why."""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic_ai.messages import ModelResponse

from agent.errors import AgentError
from agent.guardrails import Limit, Limits, explained, said, withheld
from agent.result import CancelReason, FinishReason
from agent.sayings import Saying


class Ending(NamedTuple):
    """How a run ends: its reason, the sentence that says why, and that sentence by name, where it is one of ours."""

    reason: FinishReason
    detail: str = ""
    sayings: tuple[Saying, ...] = ()


BROKEN = Ending(
    "error", "Something went wrong in this program; the details are in its log.", (Saying("broken_program"),)
)
UNSEALED = Ending("error", "What this run waits for cannot be kept, so it has ended.", (Saying("unsealed"),))
STOPPED = "{why}; the model server was free after {milliseconds} ms."
LEFT_RUNNING = "The tool {name} cannot be interrupted and was left running."
CANCELLED: dict[CancelReason, str] = {
    "user_request": "Stopped",
    "client_disconnect": "Stopped because nobody was watching any more",
    "shutdown": "Stopped because the server was shut down",
}


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
    return Ending("error", str(failure), failure.sayings)


def by_store(failure: Exception) -> Ending:
    """The ending of a run whose end could not be kept."""
    said = str(failure) if isinstance(failure, AgentError) else "the store failed"
    return Ending("error", f"This answer could not be saved: {said}", (Saying("unsaved", {"reason": said}),))


def by_cancelling(reason: CancelReason | None, free_after: float, left_running: Sequence[str]) -> Ending:
    """The ending of a cancelled run: why, when the connection to the server was closed, and which tools go on.

    `free_after` is in seconds.
    """
    reason = reason or "user_request"
    after = f"{free_after * 1000:.0f}"
    receipt = [STOPPED.format(why=CANCELLED[reason], milliseconds=after)]
    sayings = [Saying("stopped", {"why": Saying(reason), "milliseconds": after})]
    for name in left_running:
        receipt.append(LEFT_RUNNING.format(name=name))
        sayings.append(Saying("left_running", {"name": name}))
    return Ending("cancelled", " ".join(receipt), tuple(sayings))
