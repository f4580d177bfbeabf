"""Names a series of thoughts and tool calls with their results: "Thought 2.7 s · 4 tools · 1 failed"."""

from collections.abc import Iterable

from agent.i18n import _, decimal, ngettext
from agent.i18n.translator import Translator
from agent.rendering.tool_errors import localized_error

REASONING = _("Reasoning")
LEAST_STEPS = 2
"""The steps of a series. A single step is shown alone."""
SHORTEST = 0.05
"""The shortest thought whose seconds are named. A shorter one would have taken 0.0 s."""
REASON_LENGTH = 80
"""The most characters of a tool's error in the title of its call."""


def steps_name(thoughts: int, tools: int, failed: int, translator: Translator, *, seconds: float = 0.0) -> list[str]:
    """Return the parts of the name. The last one counts the failed tools, if there are any.

    `seconds` is what `total_seconds` returns, 0 if that is not known.
    """
    parts: list[str] = []
    if thoughts:
        thought = _("Thought {seconds} s", seconds=decimal(seconds, 1)) if seconds >= SHORTEST else _("Thought")
        parts.append(translator(thought))
    if tools:
        parts.append(translator(ngettext("{count} tool", "{count} tools", tools)))
    if failed:
        parts.append(translator(ngettext("{count} failed", "{count} failed", failed)))
    return parts


def total_seconds(thoughts: Iterable[float]) -> float:
    """Return how long the model has thought. It is the sum of what `thought_name` shows of each thought."""
    return sum(round(one, 1) for one in thoughts)


def thought_name(seconds: float, translator: Translator) -> str:
    """Return the name of one thought. `seconds` is its duration, 0 if that is not known."""
    duration = translator(_("{seconds} s", seconds=decimal(seconds, 1)))
    return f"{translator(REASONING)} · {duration}" if seconds >= SHORTEST else translator(REASONING)


def failure_reason(error: str) -> str:
    """Return the first line of a tool's error. It can be translated if it is of a tool of ours."""
    # The text of a tool's ValueError is written for people; the name of its class is not.
    line = " ".join(error.strip().partition("\n")[0].removeprefix("ValueError: ").split()).removesuffix(".")
    return localized_error(line)


def short_reason(reason: str, translator: Translator) -> str:
    """Return the reason of a failure, short enough for a title."""
    line = translator(reason)
    return line if len(line) <= REASON_LENGTH else line[: REASON_LENGTH - 1].rstrip() + "…"
