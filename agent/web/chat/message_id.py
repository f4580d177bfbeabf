"""The id that a page gives to a message before it sends it, so that a message that is sent twice is stored once."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageId:
    """The id of a message, "" if the server gives it one.

    `again`: the page has sent it before and got no answer, for example because the process ended meanwhile. It may be
    stored already.
    """

    value: str = ""
    again: bool = False

    def conversation(self, owner: str) -> str:
        """Return the id of the conversation that this message of the owner begins. Nobody else can guess it."""
        return hashlib.sha256(f"{owner}\n{self.value}".encode()).hexdigest()[:32]


NO_MESSAGE_ID = MessageId()
