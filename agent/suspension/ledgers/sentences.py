"""The sentences about the server of a ledger that is away or refuses."""

from agent.errors import HistoryError, StoreUnavailable, without_paths
from agent.i18n import _


def unreachable(name: str) -> StoreUnavailable:
    """Return the error that the server is away. Nothing is resumed then."""
    return StoreUnavailable(
        _("The ledger {name} cannot be reached: start its server, or correct SUSPENSION_LEDGER.", name=name)
    )


def unusable(name: str, reason: str) -> HistoryError:
    """Return the error that the server refuses."""
    reason = without_paths(reason).rstrip(".")
    return HistoryError(_("The ledger {name} cannot be used: {error}.", name=name, error=reason))
