"""The reasons why a suspended run cannot be resumed, as sentences by name."""

from collections.abc import Mapping, Sequence

from agent.errors import SuspensionError, SuspensionReason
from agent.i18n.text import N_, LocalizedText, _, joined

SENTENCES: Mapping[SuspensionReason, str] = {
    "tampered": N_("This is not a suspended run as it was sealed: something in it was changed."),
    "truncated": N_("This suspended run is not whole: its end is missing."),
    "expired": N_("This suspended run has expired."),
    "used": N_("This suspended run was resumed already."),
    "owner": N_("This suspended run is somebody else's."),
    "key": N_(
        "This suspended run was sealed with a key that is not known here. Set SUSPENSION_KEYS to the same keys in all "
        "processes."
    ),
    "schema": N_("This suspended run was sealed by another version of this program."),
    "model": N_("This run was suspended with {then}, not {now}."),
    "tools": N_("This run was suspended with other tools: {changed}."),
}


def refused(reason: SuspensionReason, **values: str) -> SuspensionError:
    """Return the error for that reason."""
    return SuspensionError(LocalizedText(SENTENCES[reason], values), reason=reason)


def of_newer_version(unknown: Sequence[str]) -> SuspensionError:
    """Return the error for a record with these fields, given by their paths, which this version does not know."""
    names = ", ".join(map(repr, unknown))
    told = [LocalizedText(SENTENCES["schema"]), _("It has fields that are not known here: {fields}.", fields=names)]
    return SuspensionError(joined(told), reason="schema")
