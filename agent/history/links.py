"""Read-only links to conversations, as stores keep them.

The address of a link has a secret token. A store has only its digest, so that nobody who reads the store can open one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from secrets import token_urlsafe

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from agent.errors import HistoryError, Limited
from agent.history.records import now
from agent.i18n.text import _

NO_LINK = _("There is no such link.")
USED_DIGEST = "A link with this digest is stored already, and links are never overwritten."
TOKEN_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link to one conversation of `owner`. `digest` is that of its token.

    `head_id` is the last entry that its readers see, None if they see the newest one at any time. `system_prompt` is
    the one that they see, None for none: a conversation does not store it. With `with_files`, they see the attachments.
    `expires_at` is None for a link that does not expire.
    """

    digest: str
    conversation_id: str
    owner: str
    created_at: datetime = field(default_factory=now)
    expires_at: datetime | None = None
    head_id: str | None = None
    system_prompt: str | None = None
    with_files: bool = False

    def is_live(self, at: datetime) -> bool:
        """Return True if the link has not expired then."""
        return self.expires_at is None or self.expires_at.timestamp() > at.timestamp()


_LINK = TypeAdapter(Link)


def new_token() -> str:
    """Return a token of 192 random bits, in letters, digits, "-" and "_"."""
    return token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> str:
    """Return the digest of a token. Tokens are random, so it needs no salt and no slow hash."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def dump_link(link: Link) -> str:
    """Return the link as JSON. Raises `HistoryError` for text that no store can keep."""
    try:
        return _LINK.dump_json(link).decode()
    except PydanticSerializationError as error:  # half of a surrogate pair
        raise HistoryError("The link was not saved: it has text that is not valid Unicode.") from error


def load_link(text: str) -> Link:
    """Return the link of this JSON. Raises `HistoryError` if it is damaged."""
    try:
        return _LINK.validate_json(text)
    except ValidationError as error:
        raise HistoryError("A stored link is damaged.") from error


def too_many(most: int) -> Limited:
    """Return the error for a conversation that has `most` links already."""
    return Limited(_("A chat can have at most {most} links. Revoke one of them first.", most=most))


def live_links(links: Iterable[Link], at: datetime) -> list[Link]:
    """Return the links that have not expired then, the oldest first."""
    return sorted((link for link in links if link.is_live(at)), key=lambda link: (link.created_at, link.digest))
