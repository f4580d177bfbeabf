"""The request for an answer, with which another process can finish it: the visitor's choices, never a key."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agent.history import RunEvent
from agent.web.chat.choices import Choices


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The request for one answer. `choices` name the model that is used.

    `lost` counts the processes that were lost with the answer before. `resumed`: the run adds to the last turn.
    `instead_of` is the lost run whose step in flight this run begins again, "" if it does not. `own_key`: the visitor
    had typed the model's key.
    """

    choices: Choices
    lost: int = 0
    resumed: bool = False
    instead_of: str = ""
    own_key: bool = False

    def value(self) -> Mapping[str, Any]:
        """Return it as JSON, for the first event of the run."""
        return asdict(self)


_REQUEST = TypeAdapter(RunRequest)


def request_of(events: Sequence[RunEvent]) -> RunRequest | None:
    """Return the request in the first event of a run, or None if there is none, or one that cannot be read."""
    try:
        return _REQUEST.validate_python(events[0].value["request"])
    except (IndexError, KeyError, ValidationError):
        return None
