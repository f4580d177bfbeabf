"""The id that a page gives to a message before it sends it, so that a message that is sent twice is stored once."""

import hashlib
import re
from dataclasses import dataclass
from typing import Self

_SENT = re.compile(r"(?P<id>[0-9a-f]{32})(?P<again> again)?")


@dataclass(frozen=True, slots=True)
class MessageId:
    """The id of a message, "" if the server gives it one.

    `again`: the page has sent it before and got no answer, for example because the process ended meanwhile. It may be
    stored already.
    """

    value: str = ""
    again: bool = False

    @classmethod
    def of(cls, sent: object) -> Self:
        """Read what a page has sent. Anything else than an id leaves the choice of one to the server."""
        found = _SENT.fullmatch(str(sent or ""))
        return cls(found["id"], bool(found["again"])) if found else cls()

    def conversation(self, owner: str) -> str:
        """Return the id of the conversation that this message of the owner begins. Nobody else can guess it."""
        return hashlib.sha256(f"{owner}\n{self.value}".encode()).hexdigest()[:32]


NO_MESSAGE_ID = MessageId()
