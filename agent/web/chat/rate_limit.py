"""Rate limits for public pages: concurrent answers and fetches, and their number per minute.

They apply per visitor, per network address if it is known, and to all visitors together. Visitors without a cookie
count as one, because otherwise each of their sessions would be a new visitor.
"""

import math
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from types import TracebackType

from agent.errors import AgentError, Limited
from agent.i18n.text import LocalizedText, Plural, _, joined, ngettext_noop
from agent.settings import PublicSettings
from agent.web.chat.visitor import Visitor
from agent.web.heavy_work import MINUTE_SECONDS, HeldPlace

MAX_FETCHES = 2
"""Images that are fetched at once for one visitor."""

ALL = "all"
Release = Callable[[], None]


class Reservation(HeldPlace):
    """A reservation of one answer or one fetch.

    `uncount` removes a message from the count of all visitors in this minute. It is called if a message is refused
    before any costly work. Otherwise refusals that cost nothing would use up the limit of all visitors. `forget`
    counts the message for nobody, because it was given back.
    """

    def __init__(self, release: Release, uncount: Release | None = None, forget: Release = lambda: None) -> None:
        super().__init__(release)
        self._uncount, self.forget = uncount, forget

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        if not self._is_handed_over and self._uncount is not None and isinstance(error, AgentError):
            self._uncount()

    def count_for_all(self) -> None:
        """Count the message for all visitors even if it is refused, because something costly begins."""
        self._uncount = None


ANSWERS_OF_VISITOR = ngettext_noop(
    "{count} of your answers is being written at this moment, which is the most for each "
    "visitor. Try again when one is done.",
    "{count} of your answers are being written at this moment, which is the most for each "
    "visitor. Try again when one is done.",
)
MESSAGES_OF_VISITOR = ngettext_noop(
    "Limit: {count} message a minute. Try again in {seconds} s.",
    "Limit: {count} messages a minute. Try again in {seconds} s.",
)
ANSWERS_OF_ADDRESS = ngettext_noop(
    "{count} answer is being written for your network address at this moment, which is the most. Try again soon.",
    "{count} answers are being written for your network address at this moment, which is the most. Try again soon.",
)
MESSAGES_OF_ADDRESS = ngettext_noop(
    "Limit for your network address: {count} message a minute. Try again in {seconds} s.",
    "Limit for your network address: {count} messages a minute. Try again in {seconds} s.",
)
ANSWERS_OF_ALL = ngettext_noop(
    "{count} answer is being written here at this moment, which is the most. Try again soon.",
    "{count} answers are being written here at this moment, which is the most. Try again soon.",
)
MESSAGES_OF_ALL = ngettext_noop(
    "Limit for all visitors together: {count} message a minute. Try again in {seconds} s.",
    "Limit for all visitors together: {count} messages a minute. Try again in {seconds} s.",
)
FETCHES_OF_VISITOR = ngettext_noop(
    "{count} picture is being fetched at this moment, which is the most for each visitor. Try again soon.",
    "{count} pictures are being fetched at this moment, which is the most for each visitor. Try again soon.",
)
PICTURES_OF_VISITOR = ngettext_noop(
    "Limit: {count} image from links a minute. Try again in {seconds} s.",
    "Limit: {count} images from links a minute. Try again in {seconds} s.",
)
FETCHES_OF_ADDRESS = ngettext_noop(
    "{count} picture is being fetched for your network address at this moment, which is the most. Try again soon.",
    "{count} pictures are being fetched for your network address at this moment, which is the most. Try again soon.",
)
PICTURES_OF_ADDRESS = ngettext_noop(
    "Limit for your network address: {count} image from links a minute. Try again in {seconds} s.",
    "Limit for your network address: {count} images from links a minute. Try again in {seconds} s.",
)
FETCHES_OF_ALL = ngettext_noop(
    "{count} picture is being fetched at this moment, which is the most here. Try again soon.",
    "{count} pictures are being fetched at this moment, which is the most here. Try again soon.",
)
PICTURES_OF_ALL = ngettext_noop(
    "Limit for all visitors together: {count} image from links a minute. Try again in {seconds} s.",
    "Limit for all visitors together: {count} images from links a minute. Try again in {seconds} s.",
)
SEARCHES_OF_VISITOR = ngettext_noop(
    "Limit: {count} search or page a minute. Try again in {seconds} s.",
    "Limit: {count} searches and pages a minute. Try again in {seconds} s.",
)
SEARCHES_OF_ADDRESS = ngettext_noop(
    "Limit for your network address: {count} search or page a minute. Try again in {seconds} s.",
    "Limit for your network address: {count} searches and pages a minute. Try again in {seconds} s.",
)
SEARCHES_OF_ALL = ngettext_noop(
    "Limit for all visitors together: {count} search or page a minute. Try again in {seconds} s.",
    "Limit for all visitors together: {count} searches and pages a minute. Try again in {seconds} s.",
)
"""The messages of the limits, for one and for many: at once, and a minute."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """The limits of one bucket, at once and per minute. `too_many` and `too_often` are the messages."""

    too_many: Plural
    too_often: Plural
    at_once: int
    a_minute: int


_Bounds = tuple[_Bound, _Bound, _Bound]
"""The limits of a visitor, of a network address, and of all together."""


class RateLimiter:
    """Reserves places for answers and fetches, or says when to try again. Without limits it refuses nothing."""

    def __init__(self, limits: PublicSettings | None, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._answers, self._fetches, self._searches = _Counts(clock), _Counts(clock), _Counts(clock)

    def reserve_answer(self, visitor: Visitor) -> Reservation:
        """Reserve a place for an answer and count a message. Raises `Limited`, which reserves and counts nothing."""
        return self._reserve(self._answers, _answer_bounds, visitor, refusals_free=True)

    def count_message(self, visitor: Visitor) -> Release:
        """Count a message to an answer that has its place already. Raises `Limited`, which counts nothing.

        Return what gives the count back.
        """
        reservation = self._reserve(self._answers, _message_bounds, visitor)
        reservation.release()
        return reservation.forget

    def reserve_fetch(self, visitor: Visitor) -> Reservation:
        """Reserve a place for an image fetched from a link. Raises `Limited`, which reserves and counts nothing."""
        return self._reserve(self._fetches, _fetch_bounds, visitor)

    def reserve_search(self, visitor: Visitor) -> Reservation:
        """Count a search in the web, or a page that a model reads. Raises `Limited`, which counts nothing."""
        return self._reserve(self._searches, _search_bounds, visitor)

    def _reserve(
        self,
        counts: "_Counts",
        bounds_of: Callable[[PublicSettings], _Bounds],
        visitor: Visitor,
        *,
        refusals_free: bool = False,
    ) -> Reservation:
        if self._limits is None:
            return Reservation(lambda: None)
        return counts.reserve(visitor, bounds_of(self._limits), refusals_free=refusals_free)


def _answer_bounds(limits: PublicSettings) -> _Bounds:
    return (
        _Bound(ANSWERS_OF_VISITOR, MESSAGES_OF_VISITOR, limits.answers_each, limits.messages),
        _Bound(ANSWERS_OF_ADDRESS, MESSAGES_OF_ADDRESS, limits.answers_per_address, limits.messages_per_address),
        _Bound(ANSWERS_OF_ALL, MESSAGES_OF_ALL, limits.answers, limits.messages_in_all),
    )


def _message_bounds(limits: PublicSettings) -> _Bounds:
    each, address, together = (replace(one, at_once=sys.maxsize) for one in _answer_bounds(limits))
    return each, address, together


def _fetch_bounds(limits: PublicSettings) -> _Bounds:
    return (
        _Bound(FETCHES_OF_VISITOR, PICTURES_OF_VISITOR, MAX_FETCHES, limits.messages),
        _Bound(FETCHES_OF_ADDRESS, PICTURES_OF_ADDRESS, limits.answers_per_address, limits.messages_per_address),
        _Bound(FETCHES_OF_ALL, PICTURES_OF_ALL, limits.answers, limits.messages_in_all),
    )


def _search_bounds(limits: PublicSettings) -> _Bounds:
    return (
        _Bound(SEARCHES_OF_VISITOR, SEARCHES_OF_VISITOR, sys.maxsize, limits.messages),
        _Bound(SEARCHES_OF_ADDRESS, SEARCHES_OF_ADDRESS, sys.maxsize, limits.messages_per_address),
        _Bound(SEARCHES_OF_ALL, SEARCHES_OF_ALL, sys.maxsize, limits.messages_in_all),
    )


@dataclass(slots=True)
class _Counted:
    """The time of a counted message, and the buckets that still count it."""

    at: float
    buckets: tuple[str, ...]


class _Counts:
    """The counts by bucket, now and in the last minute. Nothing awaits between a check and its count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._current, self._last_minute = Counter[str](), Counter[str]()
        self._times = deque[_Counted]()

    def reserve(self, visitor: Visitor, limits: _Bounds, *, refusals_free: bool) -> Reservation:
        """Count once in each bucket of this visitor, or raise `Limited` and count in none.

        With `refusals_free`, a message that is refused before any costly work does not count for all visitors.
        """
        each, address, together = limits
        bounds = {visitor.rate_limit_key: each}
        if visitor.address is not None:
            bounds[f"address {visitor.address}"] = address
        bounds[ALL] = together
        now = self._clock()
        self._forget(now - MINUTE_SECONDS)
        for bucket, bound in bounds.items():
            if self._current[bucket] >= bound.at_once:
                raise _refusal(_text(bound.too_many, count=self._current[bucket]), bound is each and visitor.guest)
            if self._last_minute[bucket] >= bound.a_minute:
                oldest = next((one.at for one in self._times if bucket in one.buckets), now)
                text = _text(bound.too_often, count=bound.a_minute, seconds=math.ceil(oldest + MINUTE_SECONDS - now))
                raise _refusal(text, bound is each and visitor.guest)
        buckets = tuple(bounds)
        self._times.append(counted := _Counted(now, buckets))
        self._last_minute.update(buckets)
        self._current.update(buckets)
        return Reservation(
            lambda: self._release(buckets),
            (lambda: self._uncount(counted, ALL)) if refusals_free else None,
            lambda: self._uncount(counted, *buckets),
        )

    def _release(self, buckets: tuple[str, ...]) -> None:
        self._current.subtract(buckets)
        self._current += Counter()  # drops buckets at zero

    def _uncount(self, counted: _Counted, *buckets: str) -> None:
        self._last_minute.subtract(bucket for bucket in counted.buckets if bucket in buckets)
        counted.buckets = tuple(bucket for bucket in counted.buckets if bucket not in buckets)

    def _forget(self, before: float) -> None:
        gone = False
        while self._times and self._times[0].at <= before:
            counted = self._times.popleft()
            self._last_minute.subtract(counted.buckets)
            counted.buckets, gone = (), True
        if gone:
            self._last_minute += Counter()


def _text(forms: Plural, **values: int) -> LocalizedText:
    singular, plural = forms
    return LocalizedText(singular, values, plural)


def _refusal(text: LocalizedText, guests: bool) -> Limited:
    shared = _("All visitors whose browsers keep no cookies share this limit.")
    return Limited(joined([text, shared]) if guests else text)
