"""The reasons why a suspended run cannot be resumed, as sentences by name."""

from functools import partial

from agent.errors import SuspensionError, SuspensionReason, localized_error

SENTENCES = {
    "suspended_tampered": "This is not a suspended run as it was sealed: something in it was changed.",
    "suspended_truncated": "This suspended run is not whole: its end is missing.",
    "suspended_expired": "This suspended run has expired.",
    "suspended_used": "This suspended run was resumed already.",
    "suspended_owner": "This suspended run is somebody else's.",
    "suspended_key": "This suspended run was sealed with a key that is not known here.",
    "suspended_schema": "This suspended run was sealed by another version of this program.",
    "suspended_model": "This run was suspended with {then}, not {now}.",
    "suspended_tools": "This run was suspended with other tools: {changed}.",
}


def refused(reason: SuspensionReason, **values: str) -> SuspensionError:
    """Return the error for that reason."""
    return localized_error(partial(SuspensionError, reason=reason), SENTENCES, f"suspended_{reason}", **values)
