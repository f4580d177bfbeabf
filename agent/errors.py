"""The exceptions people meet, and nothing else.

    AgentError
    ├── InputError            what was passed in cannot be used; raised before any network
    │   ├── UnknownModel      no such model, or no provider named for it
    │   ├── MissingKey        the provider wants a key and there is none; the message names the variables
    │   └── SuspensionError   a suspended run cannot be resumed; carries `reason`
    ├── ConfigError           a setting is missing or wrong; the message names it
    ├── LocalModelError       a local model could not be fetched or started
    │   └── WeightsMismatch   a file is not the pinned one
    ├── Limited               a public page gives no more for the moment; the message says when to come again
    ├── Busy                  a run of this chat is going on; the message says what to do
    ├── SingleRun             this chat was for one run and has had it
    ├── ToolError             a tool tells the model, in a sentence, what went wrong
    ├── ProviderError         the model server refused or broke off; carries `kind`
    └── HistoryError          what a store refuses
        ├── NotFound          no such object, or not this owner's: the two are not told apart
        └── Conflict          it changed since it was loaded

What a model or a tool does in mid-run is never raised out of a run: it becomes an `error` response or a tool result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from agent.i18n import LocalizedText, Value, in_english

ProviderErrorKind = Literal[
    "key",
    "access",
    "unknown_model",
    "quota",
    "rate_limit",
    "overloaded",
    "context",
    "refusal",
    "unsupported",
    "connection",
    "interrupted",
    "malformed",
    "server",
]


class AgentError(Exception):
    """Base of every exception of this package; its text is a sentence fit to be shown.

    `sayings` are its parts by name, where a page may say them in another language.
    """

    def __init__(self, message: str = "", *, sayings: Sequence[LocalizedText] = ()) -> None:
        super().__init__(message)
        self.sayings = tuple(sayings)


Failure = TypeVar("Failure", bound=AgentError)


def localized_error(
    kind: Callable[..., Failure], sentences: Mapping[str, str], key: str, /, **values: Value
) -> Failure:
    """An exception that says one of these sentences, and by which name it goes; `kind` is its class, or makes one."""
    saying = LocalizedText(key, values)
    return kind(in_english(sentences, saying), sayings=(saying,))


def combine_errors(kind: Callable[..., Failure], *errors: AgentError) -> Failure:
    """One exception that says what these say, one after the other; by name only where each goes by a name."""
    by_name = all(error.sayings for error in errors)
    sayings = [saying for error in errors for saying in error.sayings] if by_name else ()
    return kind(" ".join(map(str, errors)), sayings=sayings)


class InputError(AgentError):
    """What was passed in cannot be used."""


class UnknownModel(InputError):
    """No model of that name, and no provider named that could serve it."""


class MissingKey(InputError):
    """The provider wants a key, and none was passed in or found in the environment."""


SuspensionReason = Literal["tampered", "truncated", "expired", "used", "owner", "key", "schema", "model", "tools"]


class SuspensionError(InputError):
    """A suspended run cannot be resumed.

    `reason` is what is wrong with its record: it was changed, is not whole, came too late or a second time, is another
    owner's, was signed with a key that is not known here, was written by another version, or the agent has another
    model or other tools than it had then.
    """

    def __init__(self, message: str, *, reason: SuspensionReason, sayings: Sequence[LocalizedText] = ()) -> None:
        super().__init__(message, sayings=sayings)
        self.reason: SuspensionReason = reason


class ConfigError(AgentError):
    """A setting is missing or wrong."""


class LocalModelError(AgentError):
    """A local model could not be fetched or started."""


class WeightsMismatch(LocalModelError):
    """A weights file whose sha256 is not the pinned one."""


class Limited(AgentError):
    """A page open to everybody gives no more for the moment."""


class ToolError(AgentError):
    """Raised by a tool: its text is the result that the model reads, marked as an error."""


class Busy(AgentError):
    """A run of this chat is going on already."""


class SingleRun(AgentError):
    """This chat was made for a single run and has had it."""


class ProviderError(AgentError):
    """The model server refused, failed or broke off.

    `kind` says which of the known ways it was; `status` is the HTTP status where there was one;
    `retry_after` is in seconds where the server named a time.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ProviderErrorKind,
        status: int | None = None,
        retry_after: float | None = None,
        sayings: Sequence[LocalizedText] = (),
    ) -> None:
        super().__init__(message, sayings=sayings)
        self.kind: ProviderErrorKind = kind
        self.status = status
        self.retry_after = retry_after


class HistoryError(AgentError):
    """A history store refused."""


class NotFound(HistoryError):
    """There is no such object for this owner."""


class Conflict(HistoryError):
    """The object was changed since it was loaded; load it again."""
