"""When a run must end, whatever the model wants, and the sentence that says so."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one run: model requests, seconds in all, seconds for a tool that names no time of its own."""

    steps: int = 12
    seconds: float = 600.0
    tool_seconds: float = 60.0

    def steps_reached(self) -> str:
        """Said when the model still calls tools after the last step."""
        return f"Stopped after {self.steps} steps: the model kept calling tools."

    def time_reached(self) -> str:
        """Said when the run took too long."""
        return f"Stopped after {self.seconds:g} s, the time limit of one answer."
