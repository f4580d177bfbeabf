"""Reads the files of a message: checks them, plans how the model gets each, and makes the parts of the message."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

from pydantic_ai.messages import BinaryContent, UserContent

from agent.errors import InputError
from agent.files.convert import convert_file, media_limits
from agent.files.encodings import decode_text
from agent.files.kinds import MAX_CHARACTERS, PDF, document_type
from agent.files.kinds import SUFFIXES as DOCUMENT_SUFFIXES
from agent.files.owner_files import FILE_BYTES
from agent.files.parts import attached_text, extracted_text, text_file_of
from agent.files.remarks import ConvertedMedia, refused
from agent.files.transcribe import TRANSCRIPTION_MODELS, Kind, ReportProgress, Transcriber
from agent.files.videos import Video, fit_video, read_video
from agent.i18n.text import N_, LocalizedText, _, joined, listed, ngettext
from agent.messages.adapt import pictures, sounds, videos
from agent.models.catalog import ModelSpec
from agent.system.media_types import SUFFIXES, detect_mime
from agent.system.request_queue import acting_for
from agent.system.threads import TEXTS, UPLOADS
from agent.web.chat.attached_documents import (
    READ_AS_TEXT,
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
from agent.web.chat.storage_quota import Reserve, size_of
from agent.web.unsent_files import given_name

CANNOT_TAKE = {
    "image": N_(
        '{model} cannot see pictures. Remove "{name}", choose a model that can, or turn on '
        '"Extract text from images and audio" in the settings.'
    ),
    "audio": N_(
        '{model} cannot hear sound. Remove "{name}", choose a model that can, or turn on '
        '"Extract text from images and audio" in the settings.'
    ),
    "video": N_('{model} cannot take a whole video. Attach "{name}" again to send pictures of it, or choose a model.'),
}


async def transcription_text(kind: Kind, converted: ConvertedMedia, transcriber: Transcriber) -> LocalizedText:
    """Return the message for an image or audio file that is to be transcribed."""
    reader, missing = TRANSCRIPTION_MODELS[kind], await transcriber.to_fetch(kind)
    by = {"reader": reader.label, "licence": reader.licence}
    if kind == "image":
        text = _("the text in it is extracted on this server by {reader} ({licence}) and sent instead", **by)
    else:
        text = _(
            "the speech in it ({seconds:.0f} s) is transcribed on this server by {reader} ({licence}) and sent instead",
            seconds=converted.seconds,
            **by,
        )
    return _("{done}; one-time {size:.0f} MB download", done=text, size=missing / 1e6) if missing else text


async def scan_text(pages: int, transcriber: Transcriber) -> LocalizedText:
    """Return for people how a scanned PDF is handled. Raises `InputError` if no text can be extracted now."""
    missing, reader = await transcriber.to_fetch("image"), TRANSCRIPTION_MODELS["image"]
    text = _(
        "the text of its scanned pages ({count}) is extracted on this server by {reader} ({licence}) and sent instead",
        count=pages,
        reader=reader.label,
        licence=reader.licence,
    )
    return _("{done}; one-time {size:.0f} MB download", done=text, size=missing / 1e6) if missing else text


MAX_FILES = 16


def check_files(files: Sequence[Path], max_bytes: int) -> None:
    """Raise `InputError` if one message cannot have these files. Reads none of them.

    A file named twice would be in memory twice. All files together can have twice `max_bytes`.
    """
    if len(files) > MAX_FILES:
        raise InputError(
            _(
                "The message has {count:,} files; {most} is the most. Send some of them in another message.",
                count=len(files),
                most=MAX_FILES,
            )
        )
    seen = set[Path]()
    for path in files:
        if path in seen:
            raise InputError(_("{name} is attached twice. Remove one of the two.", name=given_name(path)))
        seen.add(path)
    if (size := sum(map(_size, files))) > 2 * max_bytes:
        raise InputError(
            _(
                "The files have {size:.1f} MB together; {most:.0f} MB is the most for one message.",
                size=size / 1e6,
                most=2 * max_bytes / 1e6,
            )
        )


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file. Raises `InputError`."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise InputError(
                _(
                    "{name} has {size:.1f} MB; {most:.0f} MB is the most.",
                    name=given_name(path),
                    size=size / 1e6,
                    most=max_bytes / 1e6,
                )
            )
        return path.read_bytes()
    except OSError as error:
        raise InputError(_("{name} could not be read. Attach it again.", name=given_name(path))) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the file's own plan says that it is gone
        return 0


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

Treatment = Literal["as it is", "converted", "extracted", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentPlan:
    """The plan for one attachment and a model.

    `text` is the message for people: what is done, or why it is refused, or "". `others` are models that could take it.
    `sent` is a quoted text, a document that was read, the image, audio or video as the model takes it, or None. If the
    outcome is "extracted", `sent` is stored and transcribed, and the model gets the text.
    """

    name: str
    outcome: Treatment
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
    what = {"image": "picture", "audio": "sound"}.get(plan.sent.media_type.partition("/")[0], "video")
    needs = {what: 1, "bytes": len(plan.sent.data)}
    for name, amount in needs.items():
        if remaining.get(name, amount) < amount:
            number = media_limits(spec)[name]
            words = {"picture": pictures, "sound": sounds, "video": videos}
            allowed = f"{number / 1e6:.0f} MB" if name == "bytes" else words[name](number)
            text = LocalizedText(TAKES_AT_ONCE, {"model": spec.label, "most": allowed, "name": plan.name})
            return AttachmentPlan(name=plan.name, outcome="refused", text=text)
    for name in remaining.keys() & needs.keys():
        remaining[name] -= needs[name]
    return plan


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
    CANNOT_TAKE["video"]: N_(
        "{model} cannot take whole videos. Attach the {count} videos again to send pictures of them, or choose a model."
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


def file_types(kinds: Collection[Kind]) -> list[str]:
    """Return the types of files that a browser offers first when files are chosen: these kinds, texts and documents."""
    pictures = ["image/*", ".heic", ".heif"] if "image" in kinds else []
    sounds = ["audio/*"] if "audio" in kinds else []
    return [*pictures, *sounds, "text/*", *sorted(DOCUMENT_SUFFIXES), *sorted(TEXT_SUFFIXES)]


async def _plan(
    path: Path, spec: ModelSpec, max_bytes: int, menu: Sequence[ModelSpec], transcriber: Transcriber | None
) -> AttachmentPlan:
    name = given_name(path)
    try:
        data = await UPLOADS.run(read_file, path, max_bytes)
        kind = detect_mime(data).partition("/")[0]
        if path.suffix.lower() in TEXT_SUFFIXES:
            if planned := await TEXTS.run(_plan_text, name, data):
                return planned
            if not kind:
                raise InputError(LocalizedText(UNKNOWN_ENCODING, {"name": name}))
        if kind not in ("image", "audio") and (media_type := document_type(name, data)):
            return await _plan_document(name, data, media_type, spec, menu, transcriber)
        if path.suffix.lower() not in MEDIA_SUFFIXES and (planned := await TEXTS.run(_plan_text, name, data)):
            return planned
        if kind not in ("image", "audio"):
            raise InputError(LocalizedText(NOT_OPENED, {"name": name}))
        takes_sound = _accepts(spec, "audio") or transcriber is not None
        if kind == "audio" and (spec.video or not takes_sound) and (video := await UPLOADS.run(read_video, data)):
            return _plan_video(name, data, video, spec, menu)
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


def _plan_video(name: str, data: bytes, video: Video, spec: ModelSpec, menu: Sequence[ModelSpec]) -> AttachmentPlan:
    """Plan a video that is sent as a whole. A browser makes pictures of it for other models before it is attached."""
    if not spec.video:
        text = LocalizedText(CANNOT_TAKE["video" if spec.image else "image"], {"model": spec.label, "name": name})
        others = tuple(one for one in menu if one.video)
        return AttachmentPlan(name=name, outcome="refused", text=text, others=others)
    try:
        sent = fit_video(data, video, spec)
    except InputError as error:
        return AttachmentPlan(name=name, outcome="refused", text=_("{name} {reason}.", name=name, reason=error.text))
    length = [_("{seconds:.0f} s", seconds=sent.seconds)] if sent.seconds >= 1 else []
    return AttachmentPlan(name=name, outcome="as it is", text=listed([_("sent as a whole video"), *length]), sent=sent)


def _plan_text(name: str, data: bytes) -> AttachmentPlan | None:
    """Return the plan for a text, or None for other bytes. Raises `InputError` if the text is too long."""
    if (found := decode_text(data)) is None:
        return None
    content, encoding = found
    if len(content) > MAX_CHARACTERS:
        raise InputError(_("{name} {reason}.", name=name, reason=refused("long_document", most=MAX_CHARACTERS).text))
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
    name: str, data: bytes, media_type: str, spec: ModelSpec, menu: Sequence[ModelSpec], transcriber: Transcriber | None
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
