"""Decides whether and how long a model request waits: in the request queue or before a retry. Pure: the run waits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import random

from agent.errors import ProviderError, ProviderErrorKind
from agent.i18n.text import LocalizedText, _, first_sentence, joined, ngettext

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 8.0
"""The most seconds to wait before the second try, and before any later try, if the provider asks for no pause."""
LONGEST_REQUESTED_SECONDS = 60.0
"""The longest pause in seconds that a provider can ask for. If it asks for more, the run fails with an explanation."""

_STATUSES = (408, 409, 429)
_NEVER: tuple[ProviderErrorKind, ...] = (
    *("key", "access", "unknown_model", "quota", "context", "refusal", "unsupported", "malformed", "interrupted"),
    "empty",
)


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause of `seconds` before a retry, `until` a time on the monotonic clock, with a sentence for people.

    Or a wait in the request queue for an unknown time: `ahead` answers must end before this one begins.
    """

    until: float
    seconds: float
    sentence: LocalizedText
    ahead: int = 0


def queued(before: int) -> Wait:
    """Return the wait in the request queue behind `before` answers."""
    sentence = ngettext("{count} ahead of you", "{count} ahead of you", before)
    return Wait(math.inf, math.inf, sentence, before)


def is_transient(failure: ProviderError) -> bool:
    """Return True if the same request can succeed a little later."""
    if failure.kind in _NEVER:
        return False
    status = failure.status or 0
    return failure.kind == "connection" or status in _STATUSES or status >= 500


def next_wait(
    failure: ProviderError, *, tried: int, retries: int, now: float, chance: Callable[[], float] = random
) -> Wait | None:
    """Return the pause before the next try, or None for no retry. `tried` counts the tries made, `retries` the retries.

    If the provider asks for a time, the pause is exactly that. Otherwise `chance` (0 to 1) draws it from below a bound
    that doubles each time, so that clients that failed together do not return together.
    """
    if tried > retries or not is_transient(failure):
        return None
    asked = failure.retry_after
    if asked is not None:
        if asked > LONGEST_REQUESTED_SECONDS:
            return None
        seconds = max(0.0, asked)
        sentence = _("Provider is busy; retrying in {seconds} s", seconds=math.ceil(seconds))
    else:
        seconds = chance() * min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** (tried - 1))
        sentence = _(
            "{reason}; retrying in {seconds} s (try {number} of {most})",
            seconds=math.ceil(seconds),
            reason=first_sentence(failure.text),
            number=tried + 1,
            most=retries + 1,
        )
    return Wait(until=now + seconds, seconds=seconds, sentence=sentence)


def final_error(failure: ProviderError, *, tried: int) -> ProviderError:
    """Return the failure to report, with the number of tries, and with the requested pause if that is too long."""
    sentences = [failure.text]
    if is_transient(failure):
        if failure.retry_after is not None and failure.retry_after > LONGEST_REQUESTED_SECONDS:
            sentences.append(_("Try again in {seconds} s.", seconds=math.ceil(failure.retry_after)))
        if tried > 1:
            sentences.append(ngettext("Tried {count} time.", "Tried {count} times.", tried))
    return ProviderError(joined(sentences), kind=failure.kind, status=failure.status, retry_after=failure.retry_after)
