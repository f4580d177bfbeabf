"""What a model request waits for: a place in line, or another try, when and after how long. Pure: the run waits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import random

from agent.errors import ProviderError, ProviderErrorKind
from agent.i18n import LocalizedText

FIRST, LONGEST = 0.5, 8.0
"""Seconds: the most that is waited before the second try, and before any try where the provider names no time."""
LONGEST_REQUESTED_SECONDS = 60.0
"""Seconds: a provider that asks for more is not waited for, people are told instead."""

_STATUSES = (408, 409, 429)
_NEVER: tuple[ProviderErrorKind, ...] = (
    *("key", "access", "unknown_model", "quota", "context", "refusal", "unsupported", "malformed", "interrupted"),
)


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause before another try: `until` on the monotonic clock, `seconds` in all, and why, fit to be shown.

    Or a line in front of the server: so many answers must end `before` this one begins, nobody knows when.
    """

    until: float
    seconds: float
    sentence: str
    saying: LocalizedText
    ahead: int = 0


def queued(before: int) -> Wait:
    """What a run waits for that is not the first in line."""
    sentence = "1 answer is before this one" if before == 1 else f"{before} answers are before this one"
    saying = LocalizedText("next_in_line" if before == 1 else "in_line", {"count": before})
    return Wait(math.inf, math.inf, sentence, saying, before)


def is_transient(failure: ProviderError) -> bool:
    """Whether the same request may well succeed a little later."""
    if failure.kind in _NEVER:
        return False
    status = failure.status or 0
    return failure.kind == "connection" or status in _STATUSES or status >= 500


def next_wait(
    failure: ProviderError, *, tried: int, retries: int, now: float, chance: Callable[[], float] = random
) -> Wait | None:
    """The pause before the next try, None where there is none: after `tried` tries, with at most `retries` more.

    The provider's own time is kept to the second. Else the pause is drawn by `chance` (0 to 1) from below a bound that
    doubles: clients that failed together must not come back together.
    """
    if tried > retries or not is_transient(failure):
        return None
    asked = failure.retry_after
    if asked is not None:
        if asked > LONGEST_REQUESTED_SECONDS:
            return None
        seconds = max(0.0, asked)
        sentence = f"waiting {math.ceil(seconds)} s, asked to by the provider"
        saying = LocalizedText("asked_to_wait", {"seconds": math.ceil(seconds)})
    else:
        seconds = chance() * min(LONGEST, FIRST * 2 ** (tried - 1))
        reason = str(failure).partition(". ")[0].rstrip(".")
        sentence = f"waiting {math.ceil(seconds)} s: {reason}; try {tried + 1} of {retries + 1}"
        saying = LocalizedText(
            "try_again",
            {
                "seconds": math.ceil(seconds),
                "reason": failure.sayings[0] if failure.sayings else reason,
                "number": tried + 1,
                "most": retries + 1,
            },
        )
    return Wait(until=now + seconds, seconds=seconds, sentence=sentence, saying=saying)


def final_error(failure: ProviderError, *, tried: int) -> ProviderError:
    """The failure as it is reported: with the time that was asked for if it is too long, and how often it was tried."""
    said, sayings = [str(failure)], list(failure.sayings)
    if is_transient(failure):
        if failure.retry_after is not None and failure.retry_after > LONGEST_REQUESTED_SECONDS:
            said.append(f"It asks to wait {math.ceil(failure.retry_after)} s.")
            sayings.append(LocalizedText("asks_to_wait", {"seconds": math.ceil(failure.retry_after)}))
        if tried > 1:
            said.append(f"It was tried {tried} times.")
            sayings.append(LocalizedText("tried", {"count": tried}))
    return ProviderError(
        " ".join(said),
        kind=failure.kind,
        status=failure.status,
        retry_after=failure.retry_after,
        sayings=tuple(sayings) if failure.sayings else (),
    )
