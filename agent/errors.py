"""The exceptions of this package.

    AgentError
    ├── InputError            the input is invalid; raised before any network access
    │   ├── UnknownModel      no such model, or no provider was given for it
    │   ├── MissingKey        the provider needs a key and there is none; the message names the variables
    │   ├── SuspensionError   a suspended run cannot be resumed; carries `reason`
    │   └── MissingExtra      an extra of this package is not installed; the message says how (also a ConfigError)
    ├── ConfigError           a setting is missing or wrong; the message names it
    │   └── OtherVersion      another version of this program wrote the history, and this one does not read it
    ├── LocalModelError       a local model could not be fetched or started
    │   └── WeightsMismatch   a file is not the pinned one
    ├── Limited               a rate limit of a public page was reached; the message says when to try again
    ├── Busy                  a run of this chat is in progress; the message says what to do
    ├── SingleRun             this chat allows one run and has had it
    ├── ToolError             a tool tells the model in a sentence what went wrong
    ├── ProviderError         the model server refused, failed or disconnected; carries `kind`
    └── HistoryError          a history store refused the operation
        ├── NotFound          no such object for this owner; another owner's object gives the same error
        ├── Conflict          the object changed since it was loaded
        └── StoreUnavailable  the server of the store is away; the same call can succeed later

A run never raises the failures of a model or a tool: they become an `error` response or a tool result.
"""

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TypeVar

from agent.i18n.text import _, joined

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
    "empty",
    "malformed",
    "server",
]


class AgentError(Exception):
    """Base of every exception of this package. Its text is a sentence that can be shown to people.

    `text` is that sentence. It can be a `LocalizedText`, which the page translates.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text


Failure = TypeVar("Failure", bound=AgentError)


def combine_errors(kind: Callable[[str], Failure], *errors: AgentError) -> Failure:
    """Return one exception with the sentences of all errors."""
    return kind(joined(error.text for error in errors))


def _root_names() -> str:
    """Return the names of folders that absolute paths begin with, here and on usual systems, as a pattern."""
    names = {"home", "root", "var", "tmp", "etc", "usr", "opt", "mnt", "media", "srv", "data", "app", "run", "private"}
    names |= {"Users", "Volumes", "Library", "workspace"}
    with suppress(OSError):
        names.update(os.listdir("/"))
    return "|".join(map(re.escape, names))


_NAME = r"""[^\s/\\'",;:()<>]{1,255}"""
_BEGIN = (
    rf"(?:(?<![\w.~/\]])/(?:{_root_names()})/+|[\w+.-]{{1,20}}:/{{3,9}}|file:/{{1,2}}"
    r"|(?<!\w)[A-Za-z]:[\\/]{1,9}|(?<![\w\\])\\{2,4}(?=\w))"
)
"""A root folder, a URL without a host, a drive of Windows, or a machine in its network."""
_PATH = re.compile(
    rf"""'{_BEGIN}[^'\n]*'|"{_BEGIN}[^"\n]*"|{_BEGIN}(?:{_NAME}(?: {_NAME}){{0,3}}[/\\]{{1,9}})*(?:{_NAME})?"""
)
"""An absolute path in a text, in quotation marks or not. Not the path of a URL with a host, or of a request."""
_LOGIN = re.compile(r"""(//|\b[\w.+-]{1,100}:(?!//))[^\s'"]{1,300}@""")
"""The user and the password in a URL, up to the last @: people forget to write it in a password as %40."""


def reason_of(error: BaseException) -> str:
    """Return the reason of a failure of the system, of a driver or of a program, as a part of a sentence.

    Strangers can read it: of each absolute path it has only the last name.
    """
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _("the disk is full")
        text = error.strerror or str(error)
    else:
        text = str(error)
    return without_paths(text).rstrip(".") or type(error).__name__


def without_paths(text: str) -> str:
    """Return the text with only the last name of each absolute path."""
    folders = [os.environ.get("TMPDIR", ""), os.path.expanduser("~")]
    with suppress(OSError):
        folders.append(os.getcwd())
    for folder in folders:  # whose names can have spaces
        if os.path.dirname(folder) not in ("", os.sep):
            text = text.replace(os.path.join(folder, ""), "/tmp/")
    return _PATH.sub(lambda found: re.split(r"[/\\]", found[0].strip("'\"").rstrip("/\\"))[-1], text)


def without_logins(text: str) -> str:
    """Return the text without the user and the password of each URL."""
    return _LOGIN.sub(r"\1", text)


class InputError(AgentError):
    """The input is invalid."""


class UnknownModel(InputError):
    """There is no model of that name, and no provider was given that could serve it."""


class MissingKey(InputError):
    """The provider needs a key, and there is none in the arguments or the environment."""


SuspensionReason = Literal["tampered", "truncated", "expired", "used", "owner", "key", "schema", "model", "tools"]


class SuspensionError(InputError):
    """A suspended run cannot be resumed.

    `reason` tells why: the suspension was changed, is incomplete, has expired, was used before, belongs to another
    owner, was signed with an unknown key, was written by another version, or the agent now has another model or other
    tools.
    """

    def __init__(self, text: str, *, reason: SuspensionReason) -> None:
        super().__init__(text)
        self.reason: SuspensionReason = reason


class ConfigError(AgentError):
    """A setting is missing or wrong."""


class OtherVersion(ConfigError):
    """Another version of this program wrote the history, and this one does not read it."""


class MissingExtra(InputError, ConfigError, ImportError):
    """An extra of this package is not installed. The message says how to install it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs more packages: pip install ".[{extra}]" (in the folder of Switchboard)')


class LocalModelError(AgentError):
    """A local model could not be fetched or started."""


class WeightsMismatch(LocalModelError):
    """The sha256 of a weights file is not the pinned one."""


class Limited(AgentError):
    """A rate limit of a public page was reached."""


class ToolError(AgentError):
    """A tool failed. The model reads the text of this exception as the tool's result, marked as an error."""


class Busy(AgentError):
    """A run of this chat is already in progress."""


class SingleRun(AgentError):
    """This chat allows a single run and has had it."""


class ProviderError(AgentError):
    """The model server refused, failed or disconnected.

    `kind` is the category of the failure. `status` is the HTTP status, if there is one. `retry_after` is the pause
    in seconds that the server asked for, if any.
    """

    def __init__(
        self, text: str, *, kind: ProviderErrorKind, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(text)
        self.kind: ProviderErrorKind = kind
        self.status = status
        self.retry_after = retry_after


class HistoryError(AgentError):
    """A history store refused the operation."""


class NotFound(HistoryError):
    """There is no such object for this owner."""


class Conflict(HistoryError):
    """The object changed since it was loaded; load it again."""


class StoreUnavailable(HistoryError):
    """The server of the history store is away, or files cannot be used. The same call can succeed later."""


ConnectionCause = Literal[
    "unknown_host", "credentials", "nobody_listens", "untrusted", "no_tls", "no_way", "unanswered"
]
_CAUSES: tuple[tuple[str, ConnectionCause], ...] = (
    (r"gaierror|getaddrinfo|name resolution|translate host name|name or service not known", "unknown_host"),
    (r"password|authentication (?:failed|required)|pg_hba|role +does not exist", "credentials"),
    (r"refused|no such file", "nobody_listens"),
    (r"certificate", "untrusted"),
    (
        r"(?:ssl|tls)[^.]{0,40}(?:negotiation|handshake)|support[^.]{0,20} (?:ssl|tls)|(?:ssl|tls) is not enabled"
        r"|(?:wrong|protocol)[ _]version|record[ _]layer|packet[ _]length|unsupported[ _]protocol|http[ _]request\b",
        "no_tls",
    ),
    (r"unreachable|no route", "no_way"),
    (r"timeout|timed out|not answer", "unanswered"),
)
"""Patterns in the words of the system and of the drivers, and the cause of a failed connection that each shows."""


def cause_of(error: BaseException) -> ConnectionCause | None:
    """Return why a connection failed, None if the errors behind this one don't say."""
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) and len(chain) < 10:
        chain.append(inner)
    for group in [*chain]:  # of errors, one for each address of a name
        chain += getattr(group, "exceptions", ())
    text = " ".join(f"{type(one).__name__} {one}"[:2000] for one in chain)
    text = re.sub(r'"[^"]{0,300}"|connecting to \S{1,300}', "", text)  # names of hosts and users
    text = re.sub(r"due to [\w -]{1,40}timeout|\w{1,40}(?:Session|Transaction)Timeout", "", text)  # of the server's own
    return next((cause for pattern, cause in _CAUSES if re.search(pattern, text, re.IGNORECASE)), None)


def files_unusable(error: OSError) -> StoreUnavailable:
    """Return the error for a file or folder of the server that cannot be used now."""
    return StoreUnavailable(_("The server cannot read or write its files: {error}.", error=reason_of(error)))
