"""The errors of a local model server that does not start or does not stay up."""

from agent.errors import LocalModelError, reason_of
from agent.i18n import _


def crashed(model: str, times: int) -> LocalModelError:
    """Return the error for a server that crashes again and again."""
    return LocalModelError(_("{model} crashed {count} times and is given up.", model=model, count=times))


def not_started(error: Exception) -> LocalModelError:
    """Return the error for a start that failed for an unknown reason."""
    name = type(error).__name__
    return LocalModelError(_("The local model could not be started ({error}).", error=f"{name}: {reason_of(error)}"))
