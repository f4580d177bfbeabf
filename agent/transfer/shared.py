"""The messages that a read-only link shows, rebuilt from what the page shows of them.

Only known parts and fields are taken over, so that nothing else can leave with a link: no instructions, no signatures
and hidden reasoning, no addresses and ids of a provider, no figures but the seconds of reasoning.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    Citation,
    CitationSource,
    DocumentCitationSource,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    WebCitationSource,
)

from agent.files.parts import extracted_text_of, is_file_name, quoted_file_name
from agent.files.store import ROUTE, is_id
from agent.history import Entry, Note, Timings
from agent.i18n.text import _
from agent.i18n.translator import Translator
from agent.rendering.sources import DOCUMENT
from agent.responses import STEERED, steered_text

NOT_INCLUDED = _("An attachment that is not part of this link.")


def shared_entries(entries: Iterable[Entry], translator: Translator, *, with_files: bool) -> Iterator[Entry]:
    """Yield the entries as a link shows them. Without files, a sentence replaces each file and its text."""
    reader = _LinkReader(translator(NOT_INCLUDED), translator(DOCUMENT), with_files)
    return (_shared(entry, reader.message(entry.message), with_files) for entry in entries)


def _shared(entry: Entry, message: ModelMessage, with_files: bool) -> Entry:
    note = entry.note
    kept = Note(
        run_id=note.run_id,
        model=note.model,
        ended=note.ended,
        detail=note.detail,
        attachments=note.attachments if with_files else (),
        left_out=note.left_out,
        omitted=note.omitted,
        timings=note.timings and Timings(reasoning=note.timings.reasoning),
        at=note.at,
    )
    return Entry(id=entry.id, parent_id=entry.parent_id, message=message, note=kept)


@dataclass(frozen=True, slots=True)
class _LinkReader:
    """Rebuilds messages. `omitted` is the sentence for a file that is not included. `untitled` names a document."""

    omitted: str
    untitled: str
    with_files: bool

    def message(self, message: ModelMessage) -> ModelMessage:
        if isinstance(message, ModelRequest):
            mark = {STEERED: ""} if steered_text(message) is not None else None
            return ModelRequest(parts=[*self._request_parts(message)], timestamp=message.timestamp, metadata=mark)
        return ModelResponse(
            parts=[*self._response_parts(message)],
            model_name=message.model_name,
            timestamp=message.timestamp,
            finish_reason=message.finish_reason,
            state=message.state,
        )

    def _request_parts(self, message: ModelRequest) -> Iterable[ModelRequestPart]:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                is_text = isinstance(part.content, str)
                items = [*self._prompt([part.content] if is_text else part.content)]
                yield UserPromptPart(items[0] if is_text else items, timestamp=part.timestamp)
            elif isinstance(part, ToolReturnPart):
                result = self._value(cast(Any, part.content))
                yield ToolReturnPart(
                    part.tool_name, result, part.tool_call_id, timestamp=part.timestamp, outcome=part.outcome
                )

    def _response_parts(self, message: ModelResponse) -> Iterable[ModelResponsePart]:
        for part in message.parts:
            match part:
                case TextPart():
                    yield TextPart(part.content, citations=[*map(self._citation, part.citations or ())] or None)
                case ThinkingPart() if part.content:
                    yield ThinkingPart(part.content)
                case ToolCallPart():
                    yield ToolCallPart(part.tool_name, cast(Any, part.args), part.tool_call_id)
                case FilePart() if self.with_files:
                    yield FilePart(part.content)
                case FilePart():
                    yield TextPart(self.omitted)
                case _:
                    pass

    def _citation(self, citation: Citation) -> Citation:
        return Citation([*map(self._source, citation.sources)], anchor=citation.anchor)

    def _source(self, source: CitationSource) -> CitationSource:
        if isinstance(source, WebCitationSource):
            return WebCitationSource(source.url, title=source.title, excerpts=source.excerpts)
        if not self.with_files:
            return DocumentCitationSource(title=self.omitted)
        return DocumentCitationSource(title=source.title or self.untitled, excerpts=source.excerpts)

    def _prompt(self, items: Sequence[Any]) -> Iterable[Any]:
        for number, item in enumerate(items):
            if isinstance(item, str):
                yield self.omitted if not self.with_files and _is_file(item, is_first=number == 0) else item
            elif isinstance(item, TextContent):
                read = extracted_text_of(item)
                if read is None:
                    yield item.content
                elif self.with_files:
                    yield TextContent(item.content, metadata=read)
            elif isinstance(item, BinaryContent | ImageUrl | AudioUrl | DocumentUrl):
                yield self._file(item)

    def _value(self, value: Any) -> Any:
        """Return what a tool returned, with the files in it."""
        match value:
            case BinaryContent() | ImageUrl() | AudioUrl() | DocumentUrl():
                return self._file(value)
            case list() | tuple():
                return [self._value(one) for one in cast(Sequence[Any], value)]
            case dict():
                return {name: self._value(one) for name, one in cast(Mapping[str, Any], value).items()}
            case _:
                return value

    def _file(self, item: Any) -> Any:
        if not self.with_files:
            return self.omitted
        if isinstance(item, BinaryContent):
            return item
        stored = item.url.startswith(ROUTE) and is_id(item.url.removeprefix(ROUTE))
        link = cast(ImageUrl | AudioUrl | DocumentUrl, item)
        return type(link)(link.url, media_type=link.media_type, identifier=link.identifier) if stored else link.url


def _is_file(text: str, *, is_first: bool) -> bool:
    """Return True for a text file. The first text can be one, or typed: "Mend this:" with code has the same form."""
    name = quoted_file_name(text)
    return name is not None and (not is_first or is_file_name(name))
