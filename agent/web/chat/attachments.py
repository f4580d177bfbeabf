"""Converts what the composer sends to message parts, and plans how each file is handled for the chosen model."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from pydantic_ai.messages import BinaryContent, UserContent

from agent.errors import InputError
from agent.i18n import LocalizedText, Value
from agent.i18n.translator import ENGLISH, page_error
from agent.media.convert import convert_file, media_limits
from agent.media.mime import ConvertedMedia, detect_mime
from agent.media.owner_folders import FILE_BYTES
from agent.media.store import MediaStore
from agent.media.transcribe import READERS, Kind, ReportProgress, Transcriber
from agent.messages.parts import extracted_text, fence
from agent.models.catalog import ModelSpec
from agent.providers import acting_for
from agent.runtime.shield import run_to_completion
from agent.web.chat.storage_quota import Reserve, size_of

MAX_TEXT = 200_000
MAX_FILES = 16
TEXT_SUFFIXES = {".txt", ".md", ".csv", ".json", ".py", ".log", ".toml", ".yaml", ".yml", ".html", ".css", ".js"}
PICTURE_SUFFIXES = (".heic", ".heif", ".avif")
SOUND_SUFFIXES = (".m4a", ".opus", ".webm")
"""File types that some browsers do not know, or know under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLimits:
    """How many files of one message are transcribed at most, and the seconds for reading all its files together.

    The message holds a place for an answer while its files are read.
    """

    transcribed: int = MAX_FILES
    seconds: float = 3600.0


PUBLIC_READING = ReadingLimits(transcribed=4, seconds=600.0)
"""The limits on a page that is open to everybody."""

Outcome = Literal["as it is", "converted", "read", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentPlan:
    """The plan for one attachment and a model.

    `sayings` are the messages for people: what is done, or why it is refused. `others` are models that could take it.
    `sent` is a quoted text, or the image or audio in the model's format, or None. If the outcome is "read", `sent` is
    stored and transcribed, and the model gets the text.
    """

    name: str
    outcome: Outcome
    sayings: tuple[LocalizedText, ...]
    others: tuple[ModelSpec, ...] = ()
    sent: str | ConvertedMedia | None = None

    @property
    def said(self) -> str:
        """The messages in English, for example "HEIC to JPEG, 4032 to 1568 px"."""
        return ENGLISH.render(self.sayings)


async def plan_attachments(
    files: Sequence[Path],
    spec: ModelSpec,
    *,
    max_bytes: int,
    menu: Iterable[ModelSpec] = (),
    reading: Transcriber | None = None,
    limits: ReadingLimits = ReadingLimits(),
) -> list[AttachmentPlan]:
    """Return a plan for each of these files, in their order. Stores nothing and raises nothing.

    Files that are too many or too large together get one common refusal, and none of them is read. `menu` are the
    models that can be chosen, and `max_bytes` is the largest size of one file. `reading` transcribes images and audio
    for a model that cannot take them, if it is given.
    """
    try:
        await asyncio.to_thread(check_files, files, max_bytes)
    except InputError as error:
        return [AttachmentPlan(name="", outcome="refused", sayings=error.sayings)]
    left = {name: number for name, number in media_limits(spec).items() if number} | {"read": limits.transcribed}
    made = await asyncio.gather(*(_plan(path, spec, max_bytes, tuple(menu), reading) for path in files))
    return [_counted(plan, spec, left, limits) for plan in made]


async def message_parts(
    value: dict[str, Any] | None,
    *,
    spec: ModelSpec,
    media: MediaStore,
    owner: str,
    max_bytes: int,
    reading: Transcriber | None = None,
    report: ReportProgress | None = None,
    reserve: Reserve | None = None,
    limits: ReadingLimits = ReadingLimits(),
) -> list[UserContent]:
    """Return the parts of a submitted message. Raises `InputError` with a message; then nothing was stored.

    `reserve` is called with the total size before anything is stored, and can raise `Limited`. Each transcribed image
    or audio file is followed by its text. `report` is called during transcription, and with None after it.
    """
    text = str((value or {}).get("text") or "")
    given: list[Any] = (value or {}).get("files") or []
    files = [Path(str(item)) for item in given]
    if not text.strip() and not files:
        raise page_error(InputError, "write_first")
    check_length(text)
    texts: dict[int, str] = {}
    try:
        async with asyncio.timeout(limits.seconds):
            with acting_for(owner):
                planned = await plan_attachments(files, spec, max_bytes=max_bytes, reading=reading, limits=limits)
                if refused := [saying for plan in planned if plan.outcome == "refused" for saying in plan.sayings]:
                    raise InputError(ENGLISH.render(refused), sayings=refused)
                for number, plan in enumerate(planned):
                    if reading is not None and plan.outcome == "read" and isinstance(plan.sent, ConvertedMedia):
                        texts[number] = await reading.text(plan.name, plan.sent, report or (lambda _: None))
    except TimeoutError as error:
        raise page_error(InputError, "files_take_too_long") from error
    if texts and report:
        report(None)
    if reserve is not None:
        quoted = [plan.sent for plan in planned if isinstance(plan.sent, str)]
        files_size = sum(
            max(FILE_BYTES, len(plan.sent.data)) for plan in planned if isinstance(plan.sent, ConvertedMedia)
        )
        await reserve(size_of([text, *quoted, *texts.values()]) + files_size)
    parts: list[UserContent] = [text] if text.strip() else []
    try:
        for number, plan in enumerate(planned):
            if isinstance(plan.sent, ConvertedMedia):
                parts.append(await media.add(owner, plan.sent.data, plan.sent.media_type))
                if number in texts:
                    kind = plan.sent.media_type.partition("/")[0]
                    parts.append(extracted_text(texts[number], plan.name, kind))
            elif plan.sent is not None:
                parts.append(plan.sent)
    except BaseException:  # a cancelled message must not leave its first files behind
        await run_to_completion(media.remove(owner, ids_of(parts)))
        raise
    return parts


def ids_of(parts: Sequence[UserContent]) -> list[str]:
    """Return the ids of the files that were stored for these parts."""
    return [part.identifier for part in parts if isinstance(part, BinaryContent)]


def check_length(text: str) -> None:
    """Raise `InputError` if a text is too long for a message, an edit or an answer."""
    if len(text) > MAX_TEXT:
        raise page_error(InputError, "message_too_long", count=len(text), most=MAX_TEXT)


def check_files(files: Sequence[Path], max_bytes: int) -> None:
    """Raise `InputError` if one message cannot have these files. Reads none of them.

    A file named twice would be in memory twice. All files together may have twice the size of one.
    """
    if len(files) > MAX_FILES:
        raise page_error(InputError, "too_many_files", count=len(files), most=MAX_FILES)
    seen = set[Path]()
    for path in files:
        if path in seen:
            raise page_error(InputError, "attached_twice", name=path.name)
        seen.add(path)
    if (size := sum(map(_size, files))) > 2 * max_bytes:
        raise page_error(InputError, "files_too_large", size=size / 1e6, most=2 * max_bytes / 1e6)


def kinds(spec: ModelSpec | None = None, *, read_here: Collection[Kind] = ()) -> list[str]:
    """Return the file types for a file dialog that this model takes, or that any model takes if `spec` is None.

    `read_here` are the kinds that are transcribed for a model that cannot take them.
    """
    pictures = ["image/*", *PICTURE_SUFFIXES] if spec is None or spec.image or "image" in read_here else []
    sounds = ["audio/*", *SOUND_SUFFIXES] if spec is None or spec.audio or "audio" in read_here else []
    return [*pictures, *sounds, *sorted(TEXT_SUFFIXES)]


async def _plan(
    path: Path, spec: ModelSpec, max_bytes: int, menu: Sequence[ModelSpec], reading: Transcriber | None
) -> AttachmentPlan:
    name = path.name
    try:
        data = await asyncio.to_thread(_read, path, max_bytes)
        found = detect_mime(data).partition("/")[0]
        if path.suffix.lower() in TEXT_SUFFIXES and (not found or _is_text(data)):
            return AttachmentPlan(
                name=name, outcome="as it is", sayings=(LocalizedText("sent_as_text"),), sent=_quoted(name, data)
            )
        if found not in ("image", "audio"):
            raise page_error(InputError, "no_known_kind", name=name)
    except InputError as error:
        return AttachmentPlan(name=name, outcome="refused", sayings=error.sayings)
    senses = _senses(spec, found)
    if not senses and reading is None:
        key = "cannot_see" if found == "image" else "cannot_hear"
        said = LocalizedText(key, {"model": spec.label, "name": name})
        others = tuple(one for one in menu if _senses(one, found))
        return AttachmentPlan(name=name, outcome="refused", sayings=(said,), others=others)
    try:
        made = await convert_file(data, spec if senses else None)
    except InputError as error:  # its messages continue a sentence that begins with the name
        return AttachmentPlan(name=name, outcome="refused", sayings=tuple(_of(name, "wrong_file", error)))
    if not senses and reading is not None:
        try:
            said = await _reads(found, made, reading)
        except InputError as error:
            return AttachmentPlan(name=name, outcome="refused", sayings=tuple(_of(name, "of_file", error)))
        return AttachmentPlan(name=name, outcome="read", sayings=(_noted(said, made),), sent=made)
    done = LocalizedText("converted", {"how": reduce(_and, made.done)}) if made.done else LocalizedText("sent_as_it_is")
    if made.seconds >= 1:
        done = LocalizedText("with_length", {"done": done, "seconds": made.seconds})
    outcome = "converted" if made.done else "as it is"
    return AttachmentPlan(name=name, outcome=outcome, sayings=(_noted(done, made),), sent=made)


async def _reads(found: Kind, made: ConvertedMedia, reading: Transcriber) -> LocalizedText:
    """Return the message for an image or audio file that is to be transcribed."""
    reader, missing = READERS[found], await reading.to_fetch(found)
    by: dict[str, Value] = {"reader": reader.label, "licence": reader.licence}
    said = (
        LocalizedText("reads_picture", by)
        if found == "image"
        else LocalizedText("reads_sound", by | {"seconds": made.seconds})
    )
    return LocalizedText("with_fetch", {"done": said, "size": missing / 1e6}) if missing else said


def _of(name: str, key: str, error: InputError) -> Iterator[LocalizedText]:
    return (LocalizedText(key, {"name": name, "said": saying}) for saying in error.sayings)


def _and(first: LocalizedText, then: LocalizedText) -> LocalizedText:
    return LocalizedText("and", {"first": first, "then": then})


def _noted(done: LocalizedText, made: ConvertedMedia) -> LocalizedText:
    return LocalizedText("with_note", {"done": done, "note": made.note}) if made.note else done


def _counted(
    plan: AttachmentPlan, spec: ModelSpec, left: dict[str, int], reading_limits: ReadingLimits
) -> AttachmentPlan:
    """Return the plan, or a refusal if the message exceeds what is transcribed or what the model takes at once."""
    if not isinstance(plan.sent, ConvertedMedia):
        return plan
    if plan.outcome == "read":
        left["read"] -= 1
        if left["read"] >= 0:
            return plan
        said = LocalizedText("reads_no_more", {"most": reading_limits.transcribed, "name": plan.name})
        return AttachmentPlan(name=plan.name, outcome="refused", sayings=(said,))
    what = "picture" if plan.sent.media_type.startswith("image/") else "sound"
    needs = {what: 1, "bytes": len(plan.sent.data)}
    for name, amount in needs.items():
        if left.get(name, amount) < amount:
            number = media_limits(spec)[name]
            allowed = f"{number / 1e6:.0f} MB" if name == "bytes" else _pieces(name, number)
            said = LocalizedText("takes_no_more", {"model": spec.label, "most": allowed, "name": plan.name})
            return AttachmentPlan(name=plan.name, outcome="refused", sayings=(said,))
    for name in left.keys() & needs.keys():
        left[name] -= needs[name]
    return plan


def _pieces(what: str, number: int) -> LocalizedText:
    one, more = ("one_picture", "pictures") if what == "picture" else ("one_sound", "sounds")
    return LocalizedText(one) if number == 1 else LocalizedText(more, {"count": number})


def _senses(spec: ModelSpec, found: str) -> bool:
    return spec.image if found == "image" else spec.audio


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the file's own plan says that it is gone
        return 0


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise page_error(InputError, "file_too_large", name=path.name, size=size / 1e6, most=max_bytes / 1e6)
        return path.read_bytes()
    except OSError as error:
        raise page_error(InputError, "file_gone", name=path.name) from error


def _is_text(data: bytes) -> bool:
    """Return True if a file with a text suffix is text, although it begins like another type."""
    try:
        return "\0" not in data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False


def _quoted(name: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise page_error(InputError, "not_utf8", name=name) from error
    if len(text) > MAX_TEXT:
        raise page_error(InputError, "text_too_long", name=name, count=len(text), most=MAX_TEXT)
    return f"{name}:\n{fence(text)}"
