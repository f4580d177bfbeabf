"""Sealed suspended runs: text that only its owner can hand back, unchanged, in time and once.

The text is `key id . length . record . signature`. The record is canonical JSON in base64, and the signature covers
everything before it. The text is signed, not encrypted: everybody who has it can read the conversation.
"""

import json
import logging
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from hashlib import sha256
from typing import Any, cast

from itsdangerous import BadData, Signer
from itsdangerous.encoding import base64_decode, base64_encode
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage

from agent.errors import ConfigError, SuspensionError
from agent.history import now
from agent.history.codec import dropped_fields
from agent.i18n.text import joined
from agent.keyword_arguments import explains_fields
from agent.responses import fix_surrogates
from agent.suspension.ledger import Ledger, MemoryLedger, open_ledger
from agent.suspension.suspended_run import SCHEMA, Suspension, of_newer_version, refused

DAY_SECONDS = 24 * 3600.0
SHORTEST_SECRET = 16
_SIGNATURE = 43
"""Characters of a SHA-256 digest in base64."""
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

# A list, as in the stores: an adapter of one dataclass takes no config, and bytes need this one.
_RECORDS = TypeAdapter(
    list[Suspension], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", defer_build=True)
)


log = logging.getLogger(__name__)


@cache
def _own_keys() -> Mapping[str, str]:
    """Return a key of this process alone. Its id is random, so that other processes know that theirs is another."""
    return {f"process-{secrets.token_hex(4)}": secrets.token_urlsafe(32)}


_used_here = MemoryLedger()


def keys_of(env: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Return the keys of SUSPENSION_KEYS ("id:secret,id2:secret2", the signing key first), else this process's own.

    Raises `ConfigError` if they cannot be used. Only this process can open runs sealed with its own key.
    """
    text = env.get("SUSPENSION_KEYS", "").strip()
    if not text:
        return _own_keys()
    keys: dict[str, str] = {}
    for number, item in enumerate(text.split(","), start=1):
        name, _, secret = (part.strip() for part in item.partition(":"))
        if not _KEY_ID.fullmatch(name) or len(secret) < SHORTEST_SECRET or name in keys:
            raise ConfigError(
                f"SUSPENSION_KEYS: key {number} must be id:secret, with an id of letters and digits of its own and a "
                f"secret of at least {SHORTEST_SECRET} characters"
            )
        keys[name] = secret
    return keys


def _is_key(name: object, secret: object) -> bool:
    return isinstance(name, str) and bool(_KEY_ID.fullmatch(name)) and isinstance(secret, str) and bool(secret)


def ledger_of(env: Mapping[str, str] = os.environ) -> Ledger:
    """Return the ledger of SUSPENSION_LEDGER (see `open_ledger`), else one in this process's memory.

    Raises `ConfigError` if the variable names another place, or if the driver is missing.
    """
    address = env.get("SUSPENSION_LEDGER", "").strip()
    return open_ledger(address) if address else _used_here


@explains_fields
@dataclass(frozen=True, kw_only=True)
class Seals:
    """Seals and opens suspended runs of one `owner`. The first of the `keys` (by id) signs, and all of them open.

    A sealed run expires after `seconds` (None: never). The `ledger` remembers the used ones. By default, the keys come
    from SUSPENSION_KEYS or are this process's own, and the ledger comes from SUSPENSION_LEDGER or is in this process's
    memory. If several processes resume runs, give them the same keys and a `SqliteLedger`, or on several
    machines a `PostgresLedger` or `RedisLedger`. With shared keys and no shared ledger, each process could
    resume a run once: the log has one warning.
    """

    keys: Mapping[str, str] = field(default_factory=keys_of, repr=False)
    owner: str = ""
    ledger: Ledger = field(default_factory=ledger_of, repr=False)
    seconds: float | None = DAY_SECONDS

    def __post_init__(self) -> None:
        if (
            not isinstance(cast(object, self.keys), Mapping)
            or not self.keys
            or not all(_is_key(*item) for item in self.keys.items())
        ):
            raise ConfigError('seals need at least one key, by an id of letters and digits: Seals(keys={"1": secret})')

        if isinstance(cast(object, self.ledger), str):
            raise ConfigError("ledger takes a Ledger, not a text: write Seals(ledger=open_ledger(...))")
        try:
            self._expiry()
        except OverflowError as error:
            raise ConfigError(
                f"seconds={self.seconds!r} is longer than a date can say; None means that nothing expires"
            ) from error

    def _expiry(self) -> datetime | None:
        return None if self.seconds is None else now() + timedelta(seconds=self.seconds)

    def seal(self, suspension: Suspension) -> str:
        """Return the run as text of ASCII letters, digits and `-_.`, with this owner and its expiry set."""
        record = canonical(replace(suspension, owner=self.owner, expires_at=self._expiry()))
        return signed(record, *next(iter(self.keys.items())))

    def open(self, sealed: str) -> Suspension:
        """Return the suspended run in the text. Raises `SuspensionError` with the `reason` if it is not valid."""
        match sealed.strip().split("."):
            case [name, length, record, signature] if length.isascii() and length.isdecimal():
                if len(record) < int(length[:12]) or (len(record) == int(length[:12]) and len(signature) < _SIGNATURE):
                    raise refused("truncated")
            case [name, *rest] if _KEY_ID.fullmatch(name) and len(rest) < 3:
                raise refused("truncated")
            case _:
                raise refused("tampered")
        if name not in self.keys:
            raise refused("key")
        text = f"{name}.{length}.{record}"
        if not (_canonical(signature) and _signer(self.keys[name]).verify_signature(text, signature)):
            raise refused("tampered")
        suspension = _read(base64_decode(record))
        if suspension.owner != self.owner:
            raise refused("owner")
        if suspension.expires_at is not None and suspension.expires_at <= now():
            raise refused("expired")
        return suspension

    async def use(self, suspension: Suspension) -> None:
        """Record that the run is resumed. Raises `SuspensionError` if it was resumed before."""
        if self.ledger is _used_here and self.keys is not _own_keys():
            _warn_of_second_use()
        if not await self.ledger.use(suspension.id, suspension.expires_at):
            what_now = "Go on from the result of that run: agent.ask(prompt, context=result.context)."
            raise SuspensionError(joined([refused("used").text, what_now]), reason="used")


@cache
def _warn_of_second_use() -> None:
    """Log the warning at the first call only."""
    log.warning(
        "Suspended runs are sealed with shared keys, but only this process remembers which it has resumed: another "
        "process can resume one again. Set SUSPENSION_LEDGER to sqlite:///path, postgresql://... or redis://..., or "
        "pass Seals(ledger=...)."
    )


def canonical(suspension: Suspension) -> bytes:
    """Return the whole record as canonical JSON in UTF-8: sorted names, no white space, equal for equal records."""
    return fix_surrogates(
        json.dumps(_plain(suspension), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    ).encode()


def pack(suspension: Suspension) -> str:
    """Return the record without its messages as text, for a store that has the messages and can be trusted."""
    return canonical(replace(suspension, messages=())).decode()


def unpack(packed: str, messages: tuple[ModelMessage, ...]) -> Suspension:
    """Return the record that `pack` wrote, with its messages. Raises `SuspensionError` for another version."""
    return replace(_read(packed.encode()), messages=messages)


def _plain(suspension: Suspension) -> Any:
    """Return the record as JSON values."""
    return cast(list[Any], _RECORDS.dump_python([suspension], mode="json", warnings=False))[0]


def signed(record: bytes, name: str, secret: str) -> str:
    """Return the record sealed with one key."""
    body = base64_encode(record).decode()
    return _signer(secret).sign(f"{name}.{len(body)}.{body}").decode()


def _signer(secret: str) -> Signer:
    return Signer(secret, salt="suspended run", key_derivation="hmac", digest_method=sha256)


def _canonical(signature: str) -> bool:
    """Return True if this is the one valid text for its bytes: the last character of base64 has unused bits."""
    try:
        return base64_encode(base64_decode(signature)).decode() == signature
    except (BadData, ValueError):
        return False


def _read(record: bytes) -> Suspension:
    """Parse a record. Raises `SuspensionError` for another version; the signature proves that it is not forged.

    A field that this version does not know is refused, too, wherever it is: it would be dropped.
    """
    plain = json.loads(record)
    if plain.get("schema") != SCHEMA:
        raise refused("schema")
    try:
        (suspension,) = _RECORDS.validate_json(b"[" + record + b"]")
    except ValidationError as error:
        raise refused("schema") from error
    if unknown := sorted(dropped_fields(plain, _plain(suspension))):
        raise of_newer_version(unknown)
    return suspension
