"""The limits of a run, and one table of possible failures with what the run does about each.

`python -m agent.limits` prints docs/limits.md, with a table made from this one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from agent.i18n import LocalizedText

MAX_REFUSAL_LENGTH = 300
"""The most characters of a provider's own message that are shown."""

Limit = Literal[
    "steps", "time", "tokens", "money", "unpriced", "repeated_call", "cycle", "repeated_error", "no_progress"
]
Fault = Literal["tool_error", "tool_time", "transient", "broken", "truncated", "withheld"]
Action = Literal["retry", "tell the model", "ask the user", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one run. None means no limit.

    `steps` limits the model requests and `seconds` the whole time. `tool_seconds` limits each tool that has no timeout
    of its own. `tokens` limits the tokens sent and received, `dollars` the cost; both are checked before each step.
    `retries` is how often one request is repeated after transient failures (see `agent.runtime.retry`); 0: never.
    After `repeats` equal steps, or `idle` steps that bring nothing new, the model gets a note. After twice as many the
    run ends. An `interactive` run that reaches a limit is suspended with the question whether to continue. None: a run
    is interactive if the model has the tool `ask_user`.
    """

    steps: int = 12
    seconds: float = 600.0
    tool_seconds: float = 60.0
    retries: int = 3
    tokens: int | None = None
    dollars: float | None = None
    repeats: int = 3
    idle: int = 4
    interactive: bool | None = None

    def steps_reached(self) -> str:
        """Return the sentence for a model that still calls tools after the last step."""
        return explain_limit("steps", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """The `actions` that follow one kind of failure, in order.

    `sentence` is shown as the reason of a run's end, and `note` is for the model. Both can contain fields of `Limits`.
    "ask the user" is skipped in runs that are not interactive.
    """

    when: str
    actions: tuple[Action, ...]
    sentence: str = ""
    note: str = ""


_BOUND: tuple[Action, ...] = ("ask the user", "stop")
_CIRCLE: tuple[Action, ...] = ("tell the model", *_BOUND)

GUARDRAILS: Mapping[Limit | Fault, Guardrail] = {
    "steps": Guardrail(
        when="`steps` model requests were made, and the model still calls tools",
        actions=_BOUND,
        sentence="Stopped after {steps} steps: the model kept calling tools.",
    ),
    "time": Guardrail(
        when="the run has taken `seconds`",
        actions=_BOUND,
        sentence="Stopped after {seconds:g} s, the time limit of one answer.",
    ),
    "tokens": Guardrail(
        when="`tokens` were sent and received",
        actions=_BOUND,
        sentence="Stopped at the limit of {tokens} tokens for one answer.",
    ),
    "money": Guardrail(
        when="the run has cost `dollars`",
        actions=_BOUND,
        sentence="Stopped at the limit of ${dollars:g} for one answer.",
    ),
    "unpriced": Guardrail(
        when="there is a bound in `dollars`, and the model server does not say what was used",
        actions=_BOUND,
        sentence="Stopped: nobody knows what this costs, so the limit of ${dollars:g} could not be kept.",
    ),
    "repeated_call": Guardrail(
        when="the same calls as in the step before, `repeats` times in a row; twice as often ends it. "
        "A tool that is a `poller` does not count",
        actions=_CIRCLE,
        sentence="Stopped: the model kept making the same call.",
        note="This same call was made {times} times in a row. Do not repeat it: do something else, or answer.",
    ),
    "cycle": Guardrail(
        when="the same two to four steps in turn, `repeats` - 1 times over; twice as often ends it",
        actions=_CIRCLE,
        sentence="Stopped: the model kept making the same calls in turn.",
        note="The same {length} steps were made {times} times in turn. Do not repeat them: do something else, or "
        "answer.",
    ),
    "repeated_error": Guardrail(
        when="a tool fails with the same error `repeats` times in a row; twice as often ends it",
        actions=_CIRCLE,
        sentence="Stopped: the model ran into the same error again and again.",
        note="This same error came {times} times in a row. Change the arguments in earnest, or do without this tool.",
    ),
    "no_progress": Guardrail(
        when="`idle` steps without a text, a call or a result that was not there before; twice as many end it",
        actions=_CIRCLE,
        sentence="Stopped: the model made no progress.",
        note="The last {times} steps brought nothing new. Do something else, or answer with what you know.",
    ),
    "tool_error": Guardrail(
        when="a tool raises, is unknown, or is given arguments that do not fit", actions=("tell the model",)
    ),
    "tool_time": Guardrail(
        when="a tool takes longer than its own `timeout`, or `tool_seconds`: it is given up, or left running where it "
        "cannot be interrupted",
        actions=("tell the model",),
    ),
    "transient": Guardrail(
        when="the model server is busy, cannot be reached or fails, before anything of the answer was said: made again "
        "up to `retries` times, with pauses",
        actions=("retry", "stop"),
    ),
    "broken": Guardrail(
        when="the answer breaks off after something of it was said, or the request is refused",
        actions=("stop",),
    ),
    "truncated": Guardrail(
        when="the answer reaches the length that was asked for, or that the model has",
        actions=("stop",),
        sentence="The answer was cut off at its greatest length.",
    ),
    "withheld": Guardrail(
        when="the provider's filter, or the model, refuses to answer",
        actions=("stop",),
        sentence="The provider withheld the answer.",
    ),
}
"""Every kind of failure. Limits end a run as `limit` or suspend it. The model gets the note in a tool result."""


def explain_limit(kind: Limit | Fault, limits: Limits) -> str:
    """Return the sentence that says why the run has ended."""
    return GUARDRAILS[kind].sentence.format(**asdict(limits))


def limit_text(kind: Limit | Fault, limits: Limits) -> tuple[LocalizedText, ...]:
    """Return the same sentence as a `LocalizedText`, with all fields of `Limits` that are not None."""
    return (LocalizedText(kind, {name: value for name, value in asdict(limits).items() if value is not None}),)


def explain_filter(details: Mapping[str, Any]) -> str:
    """Return the sentence for an answer that the provider's filter ended, with its category and the provider's words.

    `details` are the response's `provider_details`. Anthropic sends a `refusal_category`; Google sends a
    `block_reason` or only a finish reason. `refusal` is the text that OpenAI and Anthropic send instead of an answer.
    """
    named = (details.get(name) for name in ("refusal_category", "block_reason", "finish_reason"))
    category = next((str(value) for value in named if value), "").replace("_", " ").lower()
    which = f" (category: {category})" if category not in ("", "content filter", "refusal", "stop", "completed") else ""
    words = details.get("refusal") or details.get("block_reason_message")
    text = " ".join(words.split()) if isinstance(words, str) else ""
    text = text if len(text) <= MAX_REFUSAL_LENGTH else text[: MAX_REFUSAL_LENGTH - 1] + "…"
    said = f" It says: {text}" if text else ""
    return GUARDRAILS["withheld"].sentence.removesuffix(".") + f"{which}.{said}"


def table() -> str:
    """Return the table for the documentation in Markdown."""
    lines = ["| kind | when | what happens | the model is told | the run ends with |", "|---|---|---|---|---|"]
    for kind, rail in GUARDRAILS.items():
        said, told = rail.sentence.format_map(_Names()), rail.note.format_map(_Names())
        happens = ", then ".join(rail.actions)
        lines.append(f"| {kind.replace('_', ' ')} | {rail.when} | {happens} | {told} | {said} |")
    return "\n".join(lines) + "\n"


class _Names(dict[str, Any]):
    """Replaces each field of a template with its own name."""

    def __missing__(self, name: str) -> "_Name":
        return _Name(name)


@dataclass(frozen=True, slots=True)
class _Name:
    name: str

    def __format__(self, spec: str) -> str:
        return f"`{self.name}`"


PAGE = """# Guardrails

What may go wrong in a run, and what happens then. Bounds are the fields of `Limits`; a run that ends early says why in
`result.note.detail`. "Ask the user" is done where somebody can be asked: `Limits(interactive=...)` says whether, else
the model's having the tool `ask_user`. The run is then suspended, and `agent.resume(result.suspension, "Go on")` gives
the bound that was reached once more. Elsewhere the run ends.

Made by `python -m agent.limits` from the table in `agent/limits.py`; change it there.

{table}"""


def page() -> str:
    """Return the text of docs/limits.md."""
    return PAGE.format(table=table())


if __name__ == "__main__":
    print(page(), end="")
