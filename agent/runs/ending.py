"""How a run ends: its reason, with the sentence that says why."""

from collections.abc import Sequence

from pydantic_ai.messages import ModelResponse

from agent.guardrails import Limits, explained, withheld
from agent.result import CancelReason, FinishReason

Ending = tuple[FinishReason, str]

_CANCELLED: dict[CancelReason | None, str] = {
    "user_request": "Stopped",
    "client_disconnect": "Stopped because nobody was watching any more",
    "shutdown": "Stopped because the server was shut down",
    None: "Stopped",
}


def by_response(response: ModelResponse, limits: Limits) -> Ending:
    """The ending that the model's last response is."""
    match response.finish_reason:
        case "content_filter":
            return "content_filter", withheld(response.provider_details or {})
        case "length":
            return "length", explained("truncated", limits)
        case _:
            return "stop", ""


def by_cancelling(reason: CancelReason | None, free_after: float, left_running: Sequence[str]) -> Ending:
    """The ending of a cancelled run: why, when the connection to the server was closed, and which tools go on.

    `free_after` is in seconds.
    """
    receipt = f"{_CANCELLED[reason]}; the model server was free after {free_after * 1000:.0f} ms."
    for name in left_running:
        receipt += f" The tool {name} cannot be interrupted and was left running."
    return "cancelled", receipt
