"""Documents among the attachments of a message: the plan for each, its text in the message, and the pages in that."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pydantic_ai.messages import BinaryContent, DocumentUrl, ModelMessage, ModelRequest, UserContent, UserPromptPart

from agent.errors import InputError
from agent.files.for_model import document_room, fit_documents, may_have_text, takes_document
from agent.files.kinds import LEFT_OUT, MAX_CHARACTERS, TEXT, Document, count_of
from agent.files.long_documents import LongDocument, bytes_of, long_documents, read_again
from agent.files.parts import document_text, extracted_text_of
from agent.files.passages import are_whole, excerpts, ranges_of, whole_size
from agent.files.reading import read_document, read_text_file, render_page
from agent.files.remarks import SENTENCES, ConvertedMedia
from agent.files.store import ROUTE, MediaStore, id_of
from agent.files.transcribe import ReportProgress, Transcriber
from agent.i18n.text import N_, LocalizedText, _, listed
from agent.models.catalog import ModelSpec
from agent.system.threads import RANKING, TEXTS

TOO_LONG = N_("The message, with the system prompt, has about {count:,} tokens, and {model} reads at most {most:,}.")
READ_AS_TEXT = N_("{count}, read as text")
_UNUSABLE = (SENTENCES["locked_document"], SENTENCES["broken_document"])
"""The reasons for which no provider can read a PDF either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDocument:
    """A document of a message. `media_type` is that of its `data`.

    `document` is None if only the model can read the file, or if all pages are scanned. The text of `scanned` pages is
    to be extracted. A text file is stored as plain text, also HTML, of which the visible text is read; `encoding`
    is what it had before, "" for UTF-8.
    """

    data: bytes
    media_type: str
    document: Document | None
    scanned: int = 0
    encoding: str = ""


async def read_attached(data: bytes, media_type: str, spec: ModelSpec) -> AttachedDocument:
    """Read an attached document. Raises `InputError`; its text continues a sentence that begins with the name.

    A PDF that cannot be read here, for example a scanned one, is accepted for a model that reads PDF files itself.
    """
    try:
        document = await read_document(data, media_type)
    except InputError as error:
        reason = error.text.message if isinstance(error.text, LocalizedText) else ""
        if not takes_document(spec, media_type) or reason in _UNUSABLE:
            raise
        document = None
    return AttachedDocument(data=data, media_type=media_type, document=document)


def scanned_pages(error: InputError) -> int:
    """Return the number of pages of a document that was refused because it is scanned, or else 0."""
    text = error.text
    is_scanned = isinstance(text, LocalizedText) and text.message == SENTENCES["scanned_document"]
    return int(text.values.get("count", 0)) if is_scanned and isinstance(text, LocalizedText) else 0


async def read_scan(
    name: str, attached: AttachedDocument, transcriber: Transcriber, report: ReportProgress
) -> AttachedDocument:
    """Return the PDF with the text that OCR finds on its scanned pages. Raises `InputError` if it has no text then."""
    document = attached.document or Document(
        attached.media_type, "", ("",) * attached.scanned, scans=tuple(range(1, attached.scanned + 1))
    )
    pages = list(document.pages)
    for number in document.scans:
        picture = ConvertedMedia(data=await render_page(attached.data, number - 1), media_type="image/png")
        title = _("{name}, page {number} of {count}", name=name, number=number, count=len(pages))
        pages[number - 1] = await transcriber.text_or_nothing(title, picture, report)
    if not any(pages):
        raise InputError(_("No text was found in {name}. Remove it, or choose a model that can see it.", name=name))
    return replace(attached, document=replace(document, pages=tuple(pages), is_ocr=True))


def with_scans(attached: AttachedDocument, spec: ModelSpec) -> AttachedDocument:
    """Return the document with its number of scanned pages to extract: none if the model reads the file itself."""
    if attached.document is None or takes_document(spec, attached.media_type):
        return attached
    return replace(attached, scanned=len(attached.document.scans))


async def read_long_text(name: str, text: str, encoding: str = "") -> AttachedDocument:
    """Return a text file that is too long for the model as sections. Raises `InputError` with a sentence."""
    try:
        document = await read_text_file(name, text)
    except InputError as error:  # its text continues a sentence that begins with the name
        raise InputError(_("{name} {reason}.", name=name, reason=error.text)) from error
    return AttachedDocument(data=text.encode("utf-8", "replace"), media_type=TEXT, document=document, encoding=encoding)


def long_texts(texts: Mapping[int, str], attached: Iterable[AttachedDocument], typed: str, spec: ModelSpec) -> set[int]:
    """Return the numbers of the text files of which the model cannot take the whole, beside the rest of the message."""
    read = [one.document for one in attached if one.document and not takes_document(spec, one.media_type)]
    sizes = [*map(whole_size, read), *(len(text.encode("utf-8", "replace")) for text in texts.values())]
    whole = are_whole(sizes, document_room(spec, typed))[len(read) :]
    return {number for number, is_whole in zip(texts, whole, strict=True) if not is_whole}


def can_read_instead(menu: Iterable[ModelSpec], media_type: str) -> tuple[ModelSpec, ...]:
    """Return the models that read such a file themselves."""
    return tuple(spec for spec in menu if takes_document(spec, media_type))


def check_total(attached: Iterable[AttachedDocument], spec: ModelSpec) -> None:
    """Raise `InputError` if the documents of one message have more text together than one document can have."""
    documents = [one.document for one in attached if one.document is not None]
    count = sum(len(page) for document in documents for page in document.pages)
    if count > MAX_CHARACTERS:
        values = {"count": count // 4, "model": spec.label, "most": spec.context_tokens}
        raise InputError(LocalizedText(TOO_LONG, values))


async def handling(attached: Sequence[AttachedDocument], spec: ModelSpec) -> list[LocalizedText]:
    """Return for people how each document of one message is handled."""
    as_text = [one.document for one in attached if one.document and not takes_document(spec, one.media_type)]
    fitted = await RANKING.run(excerpts, as_text, "", document_room(spec))
    whole = {id(document): found.is_whole for document, found in zip(as_text, fitted, strict=True)}
    return [_handling(one, spec, is_whole=whole.get(id(one.document), True)) for one in attached]


def _handling(one: AttachedDocument, spec: ModelSpec, *, is_whole: bool) -> LocalizedText:
    if one.document is None:
        return _("sent as PDF")
    count = count_of(one.document.unit, len(one.document.pages))
    if takes_document(spec, one.media_type):
        return _("{count}, sent as PDF", count=count)
    text = (
        LocalizedText(READ_AS_TEXT, {"count": count})
        if is_whole
        else _(
            "{count}, read as text. Too long for {model}, which gets the passages that suit the question",
            count=count,
            model=spec.label,
        )
    )
    if one.encoding:
        text = _("{done}; read as {encoding}", done=text, encoding=one.encoding)
    if one.document.left_out:
        left_out = listed([LocalizedText(LEFT_OUT[name]) for name in one.document.left_out])
        text = _("{done}. Not read: {left_out}", done=text, left_out=left_out)
    if (scans := one.document.scans) and not one.document.is_ocr:
        return _("{done}. Pages that are only pictures, without text: {pages}", done=text, pages=ranges_of(scans))
    return text


async def document_parts(
    attached: Sequence[tuple[str, AttachedDocument]], question: str, spec: ModelSpec, owner: str
) -> list[list[UserContent]]:
    """Return the parts of a message for each of these documents and their names: the file, and what is read of it."""
    documents = [one.document for _name, one in attached if one.document is not None]
    fitted = iter(await fit_documents(documents, question, document_room(spec, question)))
    out: list[list[UserContent]] = []
    for name, one in attached:
        content = BinaryContent(one.data, media_type=one.media_type)
        parts: list[UserContent] = [replace(content, identifier=await TEXTS.run(id_of, owner, content))]
        if one.document is not None:
            parts.append(document_text(name, one.document, next(fitted)))
        out.append(parts)
    return out


async def documents_of(
    owner: str, messages: Sequence[ModelMessage], new_parts: Sequence[UserContent], spec: ModelSpec, media: MediaStore
) -> list[LongDocument]:
    """Return the documents of a conversation that are too long for the model, also those of the new message.

    Only the owner's own files are found. They are read when a tool or a new question needs them.
    """

    async def load(file: BinaryContent | DocumentUrl) -> bytes:
        if isinstance(file, BinaryContent):
            return file.data
        return (await media.read(owner, file.url.removeprefix(ROUTE))).data

    new = ModelRequest(parts=[UserPromptPart(list(new_parts))])
    return await long_documents([*messages, new], spec, load)


async def with_new_passages(parts: Sequence[UserContent], spec: ModelSpec) -> list[UserContent]:
    """Return the parts of a stored message with what suits its question now, which can be another one.

    A document that cannot be read again keeps its text.
    """
    out = list(parts)
    numbers: list[int] = []
    documents: list[Document] = []
    for number, (file, text) in enumerate(pairwise(parts), 1):
        read = extracted_text_of(text)
        if read and read["kind"] == "document" and may_have_text(file):
            try:
                documents.append(await read_again(file, read, bytes_of))
                numbers.append(number)
            except InputError:
                continue
    question = parts[0] if parts and isinstance(parts[0], str) else ""
    fitted = await fit_documents(documents, question, document_room(spec, question))
    for number, document, found in zip(numbers, documents, fitted, strict=True):
        out[number] = document_text((extracted_text_of(parts[number]) or {})["name"], document, found)
    return out


def pages_read(read: Mapping[str, str]) -> LocalizedText:
    """Return which pages are in a text that was read: "pages 3-7 of 41", or "12 pages" for all of them."""
    pages, count = read.get("pages", ""), int(read["count"]) if read.get("count", "").isdecimal() else 0
    if not pages:
        return count_of(read.get("unit", ""), count)
    match read.get("unit"):
        case "page":
            return _("pages {pages} of {count}", pages=pages, count=count)
        case "slide":
            return _("slides {pages} of {count}", pages=pages, count=count)
        case "sheet":
            return _("sheets {pages} of {count}", pages=pages, count=count)
        case _:
            return _("sections {pages} of {count}", pages=pages, count=count)
