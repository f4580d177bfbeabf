"""The limits of a run, what it has used of them, and one table of possible failures with what the run does about each.

`.ci/limits_page.py` makes docs/limits.md from this table.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from agent.i18n.text import N_, LocalizedText, _, joined
from agent.keyword_arguments import explains_fields

MAX_REFUSAL_LENGTH = 300
"""The most characters of a provider's own message that are shown."""

Limit = Literal[
    "steps", "time", "tokens", "money", "unpriced", "repeated_call", "cycle", "repeated_error", "no_progress"
]
Fault = Literal[
    "tool_error", "tool_time", "depth", "transient", "broken", "truncated", "empty", "empty_truncated", "withheld"
]
Action = Literal["retry", "tell the model", "ask the user", "stop"]


@explains_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one run. None means no limit.

    `steps` limits the model requests and `seconds` the whole time. `tool_seconds` limits each tool that has no timeout
    of its own, and `tool_characters` what the model gets of a result. `tokens` limits the tokens sent and received,
    `dollars` the cost; both are checked before each step. `retries` is how often one request is repeated after
    transient failures (see `agent.providers.retry`); 0: never. After `repeats` equal steps, or `idle` steps that bring
    nothing new, the model gets a note. After twice as many the run ends. `depth` is how many levels of agents can be
    below the run, as tools of each other. An `interactive` run that reaches a limit is suspended with the question
    whether to continue. None: a run is interactive if the model has the tool `ask_user`. Raises `InputError` for a
    value that is not possible.
    """

    steps: int = 12
    seconds: float = 600.0
    tool_seconds: float = 60.0
    tool_characters: int = 50_000
    retries: int = 3
    tokens: int | None = None
    dollars: float | None = None
    repeats: int = 3
    idle: int = 4
    depth: int = 3
    interactive: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsed:
    """The amounts and actions of a run that count against its limits. A resumed run continues from them.

    `trail` has a digest of the calls of each step, and `known` has digests of calls and results. `errors` maps a tool
    to the digest of its last error and the number of times in a row. `idle` counts steps that brought nothing new.
    `circle` is the loop limit that was reached, if any.
    """

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    dollars: float = 0.0
    trail: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    errors: Mapping[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    idle: int = 0
    circle: Limit | None = None

    def allowing(self, limit: Limit | None) -> "BudgetUsed":
        """Return a copy with the usage of this limit reset to zero."""
        match limit:
            case None:
                return self
            case "steps":
                return replace(self, steps=0)
            case "time":
                return replace(self, seconds=0.0)
            case "tokens":
                return replace(self, tokens=0)
            case "money" | "unpriced":
                return replace(self, dollars=0.0)
            case "repeated_call" | "cycle" | "repeated_error" | "no_progress":
                return replace(self, trail=(), known=(), errors={}, idle=0, circle=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """The `actions` that follow one kind of failure, in order. `when` describes the failure in docs/limits.md.

    `sentence` is shown as the reason of a run's end, and `note` is for the model. Both can contain fields of `Limits`.
    "ask the user" is skipped in runs that are not interactive.
    """

    when: str
    actions: tuple[Action, ...]
    sentence: str = ""
    note: str = ""


_AT_LIMIT: tuple[Action, ...] = ("ask the user", "stop")
_IN_LOOP: tuple[Action, ...] = ("tell the model", *_AT_LIMIT)

FAILURE_POLICIES: Mapping[Limit | Fault, FailurePolicy] = {
    "steps": FailurePolicy(
        when="the model still calls tools after `steps` model requests",
        actions=_AT_LIMIT,
        sentence=N_("Stopped after {steps} steps: the model kept calling tools."),
    ),
    "time": FailurePolicy(
        when="the run has taken `seconds`",
        actions=_AT_LIMIT,
        sentence=N_("Stopped after {seconds:g} s, the time limit of one answer."),
    ),
    "tokens": FailurePolicy(
        when="the run has sent and received `tokens`",
        actions=_AT_LIMIT,
        sentence=N_("Stopped at the limit of {tokens} tokens for one answer."),
    ),
    "money": FailurePolicy(
        when="the run has cost `dollars`",
        actions=_AT_LIMIT,
        sentence=N_("Stopped at the limit of ${dollars:g} for one answer."),
    ),
    "unpriced": FailurePolicy(
        when="`dollars` is set, but the cost is unknown, for example because the model server reports no usage",
        actions=_AT_LIMIT,
        sentence=N_("Stopped: the cost of this answer is unknown, so the limit of ${dollars:g} cannot be checked."),
    ),
    "repeated_call": FailurePolicy(
        when="the model makes the same calls in `repeats` steps in a row; twice as many end the run. "
        "Calls of a tool that is a `poller` do not count",
        actions=_IN_LOOP,
        sentence=N_("Stopped: the model kept making the same call."),
        note="This same call was made {times} times in a row. Do not repeat it: do something else, or answer.",
    ),
    "cycle": FailurePolicy(
        when="the model repeats the same two to four steps `repeats` - 1 times; twice as often ends the run",
        actions=_IN_LOOP,
        sentence=N_("Stopped: the model kept making the same calls in turn."),
        note="The same {length} steps were made {times} times in turn. Do not repeat them: do something else, or "
        "answer.",
    ),
    "repeated_error": FailurePolicy(
        when="a tool fails with the same error `repeats` times in a row; twice as often ends the run",
        actions=_IN_LOOP,
        sentence=N_("Stopped: the model ran into the same error again and again."),
        note="This same error came {times} times in a row. Change the arguments, or do not use this tool.",
    ),
    "no_progress": FailurePolicy(
        when="`idle` steps bring no new text, call or result; twice as many end the run",
        actions=_IN_LOOP,
        sentence=N_("Stopped: the model made no progress."),
        note="The last {times} steps brought nothing new. Do something else, or answer with what you know.",
    ),
    "tool_error": FailurePolicy(
        when="a tool raises an exception, is unknown, or gets invalid arguments", actions=("tell the model",)
    ),
    "tool_time": FailurePolicy(
        when="a tool takes longer than its own `timeout`, or than `tool_seconds`: it is cancelled, or left running if "
        "it cannot be interrupted",
        actions=("tell the model",),
    ),
    "depth": FailurePolicy(
        when="an agent that is a tool is called below `depth` levels of agents",
        actions=("tell the model",),
        note="No agent can be asked here: they are nested as deep as Limits(depth=...) allows. Do it yourself.",
    ),
    "transient": FailurePolicy(
        when="the model server is busy, fails or cannot be reached before any of the answer was shown: the request is "
        "repeated up to `retries` times, with pauses",
        actions=("retry", "stop"),
    ),
    "broken": FailurePolicy(
        when="the answer breaks off after some of it was shown, or the request is refused", actions=("stop",)
    ),
    "truncated": FailurePolicy(
        when="the answer reaches `max_tokens`, or the longest answer of the model",
        actions=("stop",),
        sentence=N_("The answer was cut off at its maximum length."),
    ),
    "empty": FailurePolicy(
        when="the answer ends without a text, reasoning, tool call or file that can be shown, also after tool results. "
        "Not if it continues an unfinished text, which was then complete",
        actions=("stop",),
        sentence=N_("The model returned an empty answer."),
    ),
    "empty_truncated": FailurePolicy(
        when="the answer reaches its maximum length with nothing that can be shown, for example in hidden reasoning",
        actions=("stop",),
        sentence=N_("The answer reached its maximum length before any text."),
    ),
    "withheld": FailurePolicy(
        when="the provider's filter, or the model, refuses to answer",
        actions=("stop",),
        sentence=N_("The provider withheld the answer."),
    ),
}
"""Every kind of failure. Limits end a run as `limit` or suspend it. The model gets the note in a tool result."""


def explain_limit(kind: Limit | Fault, limits: Limits) -> str:
    """Return the sentence that says why the run has ended."""
    values = {name: value for name, value in asdict(limits).items() if value is not None}
    return LocalizedText(FAILURE_POLICIES[kind].sentence, values)


_WITHHELD = (
    *("blocked", "blocklist", "content_blocked", "content_filter", "content_filtered", "content_policy"),
    *("content_policy_violation", "filtered", "guardrail", "guardrail_intervened", "image_prohibited_content"),
    *("image_recitation", "image_safety", "jailbreak", "model_armor", "moderated", "moderation", "policy_violation"),
    *("prohibited_content", "recitation", "refusal", "refused", "safety", "sensitive", "spii"),
)
"""Finish reasons that mean that the answer was withheld. Servers with an OpenAI API pass on those of their vendor."""


def is_withheld(finish_reason: str | None, details: Mapping[str, Any]) -> bool:
    """Return True if a filter of the provider, or the model, ended the answer.

    `finish_reason` is the library's. It knows few of the reasons, so the provider's own in `details` counts, too.
    """
    own = str(details.get("finish_reason") or "").strip().lower().replace("-", "_").replace(" ", "_")
    return finish_reason == "content_filter" or own in _WITHHELD


def explain_filter(details: Mapping[str, Any]) -> str:
    """Return the sentence for an answer that the provider's filter ended, with its category and the provider's words.

    `details` are the response's `provider_details`. Anthropic sends a `refusal_category`; Google sends a
    `block_reason` or only a finish reason. `refusal` is the text that OpenAI and Anthropic send instead of an answer.
    """
    named = (details.get(name) for name in ("refusal_category", "block_reason", "finish_reason"))
    category = next((str(value) for value in named if value), "").replace("_", " ").lower()
    words = details.get("refusal") or details.get("block_reason_message")
    text = " ".join(words.split()) if isinstance(words, str) else ""
    text = text if len(text) <= MAX_REFUSAL_LENGTH else text[: MAX_REFUSAL_LENGTH - 1] + "…"
    withheld = (
        LocalizedText(FAILURE_POLICIES["withheld"].sentence)
        if category in ("", "content filter", "refusal", "stop", "completed")
        else _("The provider withheld the answer (category: {category}).", category=category)
    )
    return joined([withheld, *([_('"{text}".', text=text.removesuffix("."))] if text else [])])
