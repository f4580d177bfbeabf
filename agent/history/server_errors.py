"""The errors about the server of a history or a ledger: why it cannot be reached, and what it refuses.

A page that is open to everybody keeps the server's address and its words secret.
"""

from collections.abc import Mapping

from agent.errors import ConnectionCause, HistoryError, StoreUnavailable, cause_of, without_paths
from agent.i18n.text import N_, LocalizedText, _

_CAUSES: Mapping[ConnectionCause, str] = {
    "unknown_host": N_("no address is known for its host"),
    "credentials": N_("it rejects the user or the password"),
    "nobody_listens": N_("no server listens there"),
    "untrusted": N_("its certificate is not trusted"),
    "no_tls": N_("it does not answer in TLS"),
    "no_way": N_("no network leads there"),
    "unanswered": N_("it does not answer"),
}


def connection_reason(error: BaseException, *, is_secret: bool = False) -> str:
    """Return why a server is away: the cause if it is a known one, else the server's words unless it is secret."""
    cause = cause_of(error)
    if cause is None:
        return _("its server refuses") if is_secret else words_of(error)
    return LocalizedText(_CAUSES[cause])


def refusal_reason(error: BaseException, *, is_secret: bool = False) -> str:
    """Return why a server refuses: what our own errors say, or its words, or only the cause if it is secret."""
    if isinstance(error, HistoryError):
        return error.text
    return connection_reason(error, is_secret=True) if is_secret else words_of(error)


def words_of(error: BaseException) -> str:
    """Return what a server or a driver says, without values of the statement, paths, and the place in a script."""
    said = getattr(getattr(error, "diag", None), "message_primary", None)  # of PostgreSQL
    first = said or (str(error).strip() or type(error).__name__).splitlines()[0].rpartition(": -")[2]
    return without_paths(" ".join(first.rpartition(" failed: ")[2].split()).removesuffix("."))


def unreachable(sentence: str, reason: str, *, is_secret: bool = False) -> StoreUnavailable:
    """Return the error that a server is away. `sentence` names it."""
    hidden = _("Nothing can be kept at the moment: the history cannot be reached ({error}).", error=reason)
    return StoreUnavailable(hidden if is_secret else sentence)


def unusable(sentence: str, reason: str, *, is_secret: bool = False) -> HistoryError:
    """Return the error that a server refuses. `sentence` names it."""
    return HistoryError(_("The history cannot be used: {error}.", error=reason) if is_secret else sentence)
