"""One sentence for all files of a message that are refused for the same reason, or sent as text as usual."""

from collections.abc import Sequence
from dataclasses import replace

from agent.i18n import N_, LocalizedText, listed, ngettext
from agent.web.chat.attached_documents import READ_AS_TEXT
from agent.web.chat.attachment_plans import TAKES_AT_ONCE, TRANSCRIBED_AT_ONCE, AttachmentPlan
from agent.web.chat.transcription_text import CANNOT_TAKE

NOT_OPENED = N_("{name} can't be opened. It may be damaged, or not supported.")
SENT_AS_TEXT = N_("will be sent as text")
MOST_USUAL = 2
"""The most files of a message that are sent as text as usual and have a line each."""
_OF_SEVERAL = {
    CANNOT_TAKE["image"]: N_(
        "{model} cannot see pictures. Remove the {count} pictures, choose a model that can, or turn on "
        '"Extract text from images and audio" in the settings.'
    ),
    CANNOT_TAKE["audio"]: N_(
        "{model} cannot hear sound. Remove the {count} sound files, choose a model that can, or turn on "
        '"Extract text from images and audio" in the settings.'
    ),
    NOT_OPENED: N_("Some files can't be opened. They may be damaged, or not supported: {name}."),
    TAKES_AT_ONCE: TAKES_AT_ONCE,
    TRANSCRIBED_AT_ONCE: TRANSCRIBED_AT_ONCE,
}
"""The sentence for several files, by the one for a single file. Its `name` is then the list of their names."""
_USUAL = (SENT_AS_TEXT, READ_AS_TEXT)


def merge_refusals(plans: Sequence[AttachmentPlan]) -> list[AttachmentPlan]:
    """Return the plans with one for all files that are refused for the same reason, in the place of the first."""
    groups: dict[object, list[AttachmentPlan]] = {}
    for number, plan in enumerate(plans):
        groups.setdefault(_reason(plan) or number, []).append(plan)
    return [_merged(group) if len(group) > 1 else group[0] for group in groups.values()]


def merge_usual(plans: Sequence[AttachmentPlan]) -> list[AttachmentPlan]:
    """Return the plans with one for all files that are sent as text whole, of which nothing else must be known."""
    usual = [one for one in plans if isinstance(one.text, LocalizedText) and one.text.message in _USUAL]
    if len(usual) <= MOST_USUAL:
        return list(plans)
    count = ngettext("{count} file, sent as text", "{count} files, sent as text", len(usual))
    merged = AttachmentPlan(name="", outcome="as it is", text=count)
    return [merged if one is usual[0] else one for one in plans if one is usual[0] or one not in usual]


def _reason(plan: AttachmentPlan) -> tuple[object, ...] | None:
    """Return what files with the same reason have in common, or None for a plan that stays as it is."""
    text = plan.text
    if plan.outcome != "refused" or not isinstance(text, LocalizedText) or text.message not in _OF_SEVERAL:
        return None
    return text.message, *sorted((field, value) for field, value in text.values.items() if field != "name")


def _merged(group: Sequence[AttachmentPlan]) -> AttachmentPlan:
    first, names = group[0], [plan.name for plan in group]
    assert isinstance(first.text, LocalizedText)
    values = {**first.text.values, "name": listed(names), "count": len(names)}
    return replace(first, text=LocalizedText(_OF_SEVERAL[first.text.message], values))
