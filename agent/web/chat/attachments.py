"""Converts what the composer sends to message parts, and plans how each file is handled for the chosen model."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from pydantic_ai.messages import BinaryContent, UserContent

from agent.documents.encodings import decode_text
from agent.documents.kinds import PDF, document_type
from agent.errors import InputError
from agent.i18n import N_, LocalizedText, _, joined, listed, ngettext
from agent.media.convert import convert_file, media_limits
from agent.media.mime import SUFFIXES, ConvertedMedia, detect_mime
from agent.media.owner_files import FILE_BYTES
from agent.media.transcribe import Kind, ReportProgress, Transcriber
from agent.messages.parts import attached_text, extracted_text, text_file_of
from agent.models.catalog import ModelSpec
from agent.providers import acting_for
from agent.system.threads import TEXTS, UPLOADS
from agent.web.chat.attached_documents import (
    AttachedDocument,
    can_read_instead,
    check_total,
    document_parts,
    handling,
    long_texts,
    read_attached,
    read_long_text,
    read_scan,
    scanned_pages,
    with_scans,
)
from agent.web.chat.attachment_plans import PRIVATE_LIMITS, AttachmentLimits, AttachmentPlan, refuse_excess
from agent.web.chat.message_files import check_files, read_file
from agent.web.chat.refusals import NOT_OPENED, SENT_AS_TEXT, merge_refusals
from agent.web.chat.storage_quota import Reserve, size_of
from agent.web.chat.transcription_text import CANNOT_TAKE, scan_text, transcription_text
from agent.web.file_names import given_name

UNKNOWN_ENCODING = N_(
    "{name} is not a text in an encoding that is known for sure. Save it as UTF-8, in Excel as “CSV UTF-8”."
)
WRITE_FIRST = _("Write something first.")
MAX_TEXT = 200_000
TEXT_SUFFIXES = {
    *(".txt", ".md", ".csv", ".json", ".py", ".log", ".toml", ".yaml", ".yml", ".html", ".css", ".js"),
    *(".tsv", ".xml", ".htm", ".rst", ".tex", ".ini", ".sql", ".sh", ".ts", ".tsx", ".jsx", ".diff"),
    *(".c", ".h", ".cpp", ".hpp", ".cs", ".go", ".java", ".kt", ".lua", ".php", ".pl", ".r", ".rb", ".rs", ".swift"),
}
"""The endings of files that are read as text, or refused because their encoding is not known."""
MEDIA_SUFFIXES = {".jpeg", *(f".{suffix}" for suffix in SUFFIXES.values())} - {".txt"}
"""The endings of pictures, sounds and documents, which are damaged if they have only text. Others are read as text."""


async def plan_attachments(
    files: Sequence[Path],
    spec: ModelSpec,
    *,
    max_bytes: int,
    menu: Iterable[ModelSpec] = (),
    transcriber: Transcriber | None = None,
    limits: AttachmentLimits = PRIVATE_LIMITS,
    typed: str = "",
) -> list[AttachmentPlan]:
    """Return a plan for each of these files, in their order. Stores nothing and raises nothing.

    Files that are too many or too large together get one common refusal, and none of them is read. `menu` are the
    models that can be chosen, and `max_bytes` is the largest size of one file. `transcriber`, if given, extracts the
    text of images and audio for a model that cannot take them. The files share the model's room with the `typed` text.
    """
    if not files:
        return []
    try:
        await UPLOADS.run(check_files, files, max_bytes)
    except InputError as error:
        return [AttachmentPlan(name="", outcome="refused", text=error.text)]
    remaining = {"extracted": limits.transcribed} | {name: most for name, most in media_limits(spec).items() if most}
    plans = await asyncio.gather(*(_plan(path, spec, max_bytes, tuple(menu), transcriber) for path in files))
    plans = await _with_long_texts(plans, typed, spec)
    try:
        check_total([plan.sent for plan in plans if isinstance(plan.sent, AttachedDocument)], spec)
    except InputError as error:
        return [AttachmentPlan(name="", outcome="refused", text=error.text)]
    return await _with_handling([refuse_excess(plan, spec, remaining, limits) for plan in plans], spec)


async def message_parts(
    value: dict[str, Any] | None,
    *,
    spec: ModelSpec,
    owner: str,
    max_bytes: int,
    transcriber: Transcriber | None = None,
    report: ReportProgress | None = None,
    reserve: Reserve | None = None,
    limits: AttachmentLimits = PRIVATE_LIMITS,
) -> list[UserContent]:
    """Return the parts of a submitted message. Stores nothing. Raises `InputError` with a message.

    `reserve` is called with the total size of what is to be stored, and can raise `Limited`. Each transcribed image
    or audio file is followed by its text. `report` is called during transcription, and with None after it.
    """
    text = str((value or {}).get("text") or "")
    given: list[Any] = (value or {}).get("files") or []
    files = [Path(str(item)) for item in given]
    if not text.strip() and not files:
        raise InputError(WRITE_FIRST)
    check_length(text)
    texts: dict[int, str] = {}
    try:
        async with asyncio.timeout(limits.seconds):
            with acting_for(owner):
                planned = await plan_attachments(
                    files, spec, max_bytes=max_bytes, transcriber=transcriber, limits=limits, typed=text
                )
                if refused := [plan.text for plan in merge_refusals(planned) if plan.outcome == "refused"]:
                    raise InputError(joined(refused))
                for number, plan in enumerate(planned):
                    if transcriber and plan.outcome == "extracted" and isinstance(plan.sent, ConvertedMedia):
                        texts[number] = await transcriber.text(plan.name, plan.sent, report or (lambda _: None))
                    elif transcriber and isinstance(plan.sent, AttachedDocument) and plan.sent.scanned:
                        scan = await read_scan(plan.name, plan.sent, transcriber, report or (lambda _: None))
                        planned[number] = replace(plan, sent=scan)
    except TimeoutError as error:
        raise InputError(_("Reading the files of this message took too long. Send fewer or smaller files.")) from error
    if report and any(plan.outcome == "extracted" for plan in planned):
        report(None)
    attached = [(plan.name, plan.sent) for plan in planned if isinstance(plan.sent, AttachedDocument)]
    read = iter(await document_parts(attached, text, spec, owner))
    parts: list[UserContent] = [text] if text.strip() else []
    for number, plan in enumerate(planned):
        if isinstance(plan.sent, ConvertedMedia):
            name = _name_as(plan.name, plan.sent.media_type)
            parts.append(BinaryContent(plan.sent.data, media_type=plan.sent.media_type, identifier=name))
            if number in texts:
                kind = plan.sent.media_type.partition("/")[0]
                parts.append(extracted_text(texts[number], plan.name, kind))
        elif isinstance(plan.sent, AttachedDocument):
            parts += next(read)
        elif plan.sent is not None:
            parts.append(plan.sent)
    if reserve is not None:
        files = [part for part in parts if isinstance(part, BinaryContent)]
        await reserve(size_of(parts) + sum(max(FILE_BYTES, len(file.data)) for file in files))
    return parts


def _name_as(name: str, media_type: str) -> str:
    """Return the name with the suffix of the type that the file was converted to."""
    suffix = Path(name).suffix[1:].lower()
    wanted = SUFFIXES.get(media_type, suffix)
    return name if {"jpeg": "jpg"}.get(suffix, suffix) == wanted else f"{Path(name).stem}.{wanted}"


def check_length(*texts: str) -> None:
    """Raise `InputError` if these texts together are too long for a message, an edit or an answer."""
    count = sum(map(len, texts))
    if count > MAX_TEXT:
        raise InputError(_("The message has {count:,} characters; {most:,} is the most.", count=count, most=MAX_TEXT))


def media_kinds(spec: ModelSpec, *, extract_text: Collection[Kind] = ()) -> list[Kind]:
    """Return whether this model takes images and audio, beside the texts and documents that every model takes.

    `extract_text` are the kinds that are transcribed for a model that cannot take them.
    """
    kinds: tuple[Kind, ...] = ("image", "audio")
    return [kind for kind in kinds if _accepts(spec, kind) or kind in extract_text]


async def _plan(
    path: Path, spec: ModelSpec, max_bytes: int, menu: Sequence[ModelSpec], transcriber: Transcriber | None
) -> AttachmentPlan:
    name = given_name(path)
    try:
        data = await UPLOADS.run(read_file, path, max_bytes)
        kind = detect_mime(data).partition("/")[0]
        if path.suffix.lower() in TEXT_SUFFIXES:
            if text := await TEXTS.run(decode_text, data):
                return _plan_text(name, *text)
            if not kind:
                raise InputError(LocalizedText(UNKNOWN_ENCODING, {"name": name}))
        if kind not in ("image", "audio") and (media_type := document_type(name, data)):
            return await _plan_document(name, data, media_type, spec, menu, transcriber)
        if path.suffix.lower() not in MEDIA_SUFFIXES and (text := await TEXTS.run(decode_text, data)):
            return _plan_text(name, *text)
        if kind not in ("image", "audio"):
            raise InputError(LocalizedText(NOT_OPENED, {"name": name}))
    except InputError as error:
        return AttachmentPlan(name=name, outcome="refused", text=error.text)
    is_accepted = _accepts(spec, kind)
    if not is_accepted and transcriber is None:
        text = LocalizedText(CANNOT_TAKE[kind], {"model": spec.label, "name": name})
        others = tuple(one for one in menu if _accepts(one, kind))
        return AttachmentPlan(name=name, outcome="refused", text=text, others=others)
    try:
        converted = await convert_file(data, spec if is_accepted else None)
    except InputError as error:  # its messages continue a sentence that begins with the name
        return AttachmentPlan(name=name, outcome="refused", text=_("{name} {reason}.", name=name, reason=error.text))
    if not is_accepted and transcriber is not None:
        try:
            text = await transcription_text(kind, converted, transcriber)
        except InputError as error:
            why = _("{name}: {reason}.", name=name, reason=error.text)
            return AttachmentPlan(name=name, outcome="refused", text=why)
        return AttachmentPlan(name=name, outcome="extracted", text=_with_note(text, converted), sent=converted)
    length = [_("{seconds:.0f} s", seconds=converted.seconds)] if converted.seconds >= 1 else []
    text = _with_note(listed([*converted.done, *length]), converted)
    return AttachmentPlan(name=name, outcome="converted" if converted.done else "as it is", text=text, sent=converted)


def _plan_text(name: str, content: str, encoding: str) -> AttachmentPlan:
    text = LocalizedText(SENT_AS_TEXT) if content.strip() else _("will be sent as text, but it is empty")
    if damaged := content.count("\ufffd"):
        encoding = ngettext(
            "{encoding}, with {count} character that can't be read",
            "{encoding}, with {count} characters that can't be read",
            damaged,
            encoding=encoding or "UTF-8",
        )
    if encoding:
        text = _("{done}; read as {encoding}", done=text, encoding=encoding)
    return AttachmentPlan(
        name=name, outcome="as it is", text=text, encoding=encoding, sent=attached_text(name, content)
    )


async def _with_long_texts(plans: Sequence[AttachmentPlan], typed: str, spec: ModelSpec) -> list[AttachmentPlan]:
    """Return the plans. Text files that do not fit beside the rest of the message become documents."""
    texts = {number: file[1] for number, plan in enumerate(plans) if (file := text_file_of(plan.sent))}
    attached = [plan.sent for plan in plans if isinstance(plan.sent, AttachedDocument)]
    out = list(plans)
    for number in long_texts(texts, attached, typed, spec):
        name = plans[number].name
        try:
            sent = await read_long_text(name, texts[number], plans[number].encoding)
            out[number] = AttachmentPlan(name=name, outcome="converted", text="", sent=sent)
        except InputError as error:
            out[number] = AttachmentPlan(name=name, outcome="refused", text=error.text)
    return out


async def _plan_document(
    name: str,
    data: bytes,
    media_type: str,
    spec: ModelSpec,
    menu: Sequence[ModelSpec],
    transcriber: Transcriber | None,
) -> AttachmentPlan:
    try:
        attached = await read_attached(data, media_type, spec)
    except InputError as error:
        pages = scanned_pages(error)
        if pages and transcriber is not None:
            scan = AttachedDocument(data=data, media_type=PDF, document=None, scanned=pages)
            return await _plan_scan(name, scan, transcriber)
        others = can_read_instead(menu, media_type) if pages else ()
        text = _("{name} {reason}.", name=name, reason=error.text)
        return AttachmentPlan(name=name, outcome="refused", text=text, others=others)
    if transcriber is not None and (scan := with_scans(attached, spec)).scanned:
        plan = await _plan_scan(name, scan, transcriber)
        if plan.outcome == "extracted":
            return plan
    outcome = "as it is" if media_type == PDF and attached.document is None else "converted"
    return AttachmentPlan(name=name, outcome=outcome, text="", sent=attached)


async def _plan_scan(name: str, scan: AttachedDocument, transcriber: Transcriber) -> AttachmentPlan:
    """Plan a PDF with scanned pages whose text is extracted."""
    try:
        text = await scan_text(scan.scanned, transcriber)
    except InputError as error:
        why = _("{name}: {reason}.", name=name, reason=error.text)
        return AttachmentPlan(name=name, outcome="refused", text=why)
    return AttachmentPlan(name=name, outcome="extracted", text=text, sent=scan)


async def _with_handling(plans: Sequence[AttachmentPlan], spec: ModelSpec) -> list[AttachmentPlan]:
    """Return the plans with the messages for documents, which share the room that the model has for them."""
    texts = iter(await handling([plan.sent for plan in plans if _is_read(plan.sent)], spec))
    return [replace(plan, text=next(texts)) if _is_read(plan.sent) else plan for plan in plans]


def _is_read(sent: object) -> TypeGuard[AttachedDocument]:
    """Return True for a document that is not a scan, of which the plan says already how it is handled."""
    return isinstance(sent, AttachedDocument) and not sent.scanned


def _with_note(text: str, converted: ConvertedMedia) -> str:
    return (
        _("{done}. {note}", done=text, note=converted.note) if text and converted.note else text or converted.note or ""
    )


def _accepts(spec: ModelSpec, kind: str) -> bool:
    return spec.image if kind == "image" else spec.audio
