"""When a run must end, whatever the model wants, and the sentence that says so."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_REFUSAL = 300
"""Characters of a provider's own words that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one run: model requests, seconds in all, seconds for a tool that names no time of its own.

    `retries` is how often one request may be made again after failures that pass (see `agent.retry`); 0: never.
    """

    steps: int = 12
    seconds: float = 600.0
    tool_seconds: float = 60.0
    retries: int = 3

    def steps_reached(self) -> str:
        """Said when the model still calls tools after the last step."""
        return f"Stopped after {self.steps} steps: the model kept calling tools."

    def time_reached(self) -> str:
        """Said when the run took too long."""
        return f"Stopped after {self.seconds:g} s, the time limit of one answer."


def withheld(details: Mapping[str, Any]) -> str:
    """Said when the provider's filter ended the answer: its category and its own words, out of what came with it.

    `details` are the response's `provider_details`: Anthropic names a `refusal_category`, Google a `block_reason` or
    only a finish reason; `refusal` are words that OpenAI and Anthropic send instead of an answer.
    """
    named = (details.get(name) for name in ("refusal_category", "block_reason", "finish_reason"))
    category = next((str(value) for value in named if value), "").replace("_", " ").lower()
    which = f" (category: {category})" if category not in ("", "content filter", "refusal", "stop", "completed") else ""
    words = details.get("refusal") or details.get("block_reason_message")
    text = " ".join(words.split()) if isinstance(words, str) else ""
    text = text if len(text) <= LONGEST_REFUSAL else text[: LONGEST_REFUSAL - 1] + "…"
    return f"The provider withheld the answer{which}.{f' It says: {text}' if text else ''}"
