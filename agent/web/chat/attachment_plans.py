"""The plan for each attached file, and the limits on the files of one message."""

from dataclasses import dataclass, replace
from typing import Literal

from agent.i18n import N_, LocalizedText, _
from agent.media.convert import media_limits
from agent.media.mime import ConvertedMedia
from agent.messages.adapt import pictures, sounds
from agent.models.catalog import ModelSpec
from agent.web.chat.attached_documents import AttachedDocument
from agent.web.chat.message_files import MAX_FILES


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentLimits:
    """The most files of one message that are transcribed, and the seconds for reading all its files together.

    The message holds a place for an answer while its files are read.
    """

    transcribed: int = MAX_FILES
    seconds: float = 3600.0


PRIVATE_LIMITS = AttachmentLimits()
"""The limits on a page that is not open to everybody."""
PUBLIC_LIMITS = AttachmentLimits(transcribed=4, seconds=600.0)
"""The limits on a page that is open to everybody."""

TAKES_AT_ONCE = N_("{model} takes {most} in one message. Send {name} in another.")
TRANSCRIBED_AT_ONCE = N_("Text is extracted from at most {most} files of a message. Send {name} in another.")

Outcome = Literal["as it is", "converted", "extracted", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentPlan:
    """The plan for one attachment and a model.

    `text` is the message for people: what is done, or why it is refused, or "". `others` are models that could take it.
    `sent` is a quoted text, a document that was read, the image or audio in the model's format, or None. If the outcome
    is "extracted", `sent` is stored and transcribed, and the model gets the text.
    """

    name: str
    outcome: Outcome
    text: str
    others: tuple[ModelSpec, ...] = ()
    encoding: str = ""
    sent: str | ConvertedMedia | AttachedDocument | None = None


def refuse_excess(
    plan: AttachmentPlan, spec: ModelSpec, remaining: dict[str, int], attachment_limits: AttachmentLimits
) -> AttachmentPlan:
    """Return the plan, or a refusal if the message exceeds what is transcribed or what the model takes at once.

    `remaining` is what the message can still take, by name ("extracted", "picture", "sound", "bytes"). What this file
    needs is taken from it.
    """
    if isinstance(plan.sent, AttachedDocument) and plan.sent.scanned:
        remaining["extracted"] -= plan.sent.scanned
        if remaining["extracted"] >= 0:
            return plan
        if plan.sent.document is not None:  # the other pages have text
            remaining["extracted"] += plan.sent.scanned
            return replace(plan, outcome="converted", sent=replace(plan.sent, scanned=0))
        text = _(
            "{name} has {count} scanned pages. Text is extracted from at most {most} pages and files of a message.",
            name=plan.name,
            count=plan.sent.scanned,
            most=attachment_limits.transcribed,
        )
        return AttachmentPlan(name=plan.name, outcome="refused", text=text)
    if not isinstance(plan.sent, ConvertedMedia):
        return plan
    if plan.outcome == "extracted":
        remaining["extracted"] -= 1
        if remaining["extracted"] >= 0:
            return plan
        text = LocalizedText(TRANSCRIBED_AT_ONCE, {"most": attachment_limits.transcribed, "name": plan.name})
        return AttachmentPlan(name=plan.name, outcome="refused", text=text)
    what = "picture" if plan.sent.media_type.startswith("image/") else "sound"
    needs = {what: 1, "bytes": len(plan.sent.data)}
    for name, amount in needs.items():
        if remaining.get(name, amount) < amount:
            number = media_limits(spec)[name]
            allowed = (
                f"{number / 1e6:.0f} MB" if name == "bytes" else (pictures if name == "picture" else sounds)(number)
            )
            text = LocalizedText(TAKES_AT_ONCE, {"model": spec.label, "most": allowed, "name": plan.name})
            return AttachmentPlan(name=plan.name, outcome="refused", text=text)
    for name in remaining.keys() & needs.keys():
        remaining[name] -= needs[name]
    return plan
