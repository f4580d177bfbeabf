"""API keys that visitors typed, kept in memory by owner while the visitor is present, and nowhere else."""

import asyncio
import gc
import logging
import math
from contextvars import Context
from dataclasses import dataclass, field

from agent.errors import InputError
from agent.i18n import _

log = logging.getLogger(__name__)

MAX_KEY_LENGTH = 500
COLLECT_AFTER_SECONDS = 1.0
"""Seconds before a garbage collection, so that what is just ending is included."""
COLLECT_EVERY_SECONDS = 10.0
"""Seconds between two garbage collections, because each stops the server for a moment."""


@dataclass
class _OwnerKeys:
    keys: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    timer: asyncio.TimerHandle | None = None


class ApiKeys:
    """Keys by owner and provider. Forgets an owner's keys after `seconds` without a sign of life."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._by_owner: dict[str, _OwnerKeys] = {}
        self._collected_at = -math.inf
        self._collection: asyncio.TimerHandle | None = None

    def put(self, owner: str, provider: str, key: str) -> None:
        """Store a key. Raises `InputError` for text that cannot be a key; the message does not repeat it."""
        key = key.strip()
        if not key:
            raise InputError(_("Paste the key first."))
        if len(key) > MAX_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
            raise InputError(_("That doesn't look like a key. Paste it without spaces."))
        self._by_owner.setdefault(owner, _OwnerKeys()).keys[provider] = key
        self.keep_alive(owner)

    def get(self, owner: str, provider: str) -> str | None:
        """Return the key that this owner typed for a provider."""
        found = self._by_owner.get(owner)
        return found.keys.get(provider) if found else None

    def has_any(self, owner: str) -> bool:
        """Return True if this owner has typed a key."""
        return owner in self._by_owner

    def keep_alive(self, owner: str) -> None:
        """Restart the time after which the owner's keys are forgotten."""
        found = self._by_owner.get(owner)
        if found is None:
            return
        if found.timer is not None:
            found.timer.cancel()
        # In an empty context: a cancelled timer stays in the event loop with its context, which has this request's key.
        loop = asyncio.get_running_loop()
        found.timer = loop.call_later(self._seconds, self.forget, owner, context=Context())

    def forget(self, owner: str, provider: str | None = None) -> None:
        """Drop one key, or all keys of the owner."""
        found = self._by_owner.get(owner)
        if found is None:
            return
        if provider is not None:
            found.keys.pop(provider, None)
        if provider is None or not found.keys:
            del self._by_owner[owner]
            if found.timer is not None:
                found.timer.cancel()
        self.collect_soon()

    def collect_soon(self) -> None:
        """Free forgotten keys. A failed run is a reference cycle with its error, and holds its key until then."""
        if self._collection is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + COLLECT_AFTER_SECONDS, self._collected_at + COLLECT_EVERY_SECONDS)
            self._collection = loop.call_at(at, self._collect)

    def _collect(self) -> None:
        self._collection, self._collected_at = None, asyncio.get_running_loop().time()
        gc.collect()
        log.debug("collected garbage after a key was forgotten")
