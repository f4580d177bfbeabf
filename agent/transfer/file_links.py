"""Renews the links of imported messages to their files, and removes what would make a provider fetch something else."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    UploadedFile,
    VideoUrl,
)

from agent.files.store import ROUTE, is_id, new_file_id, type_of_id
from agent.history import Entry
from agent.transfer.imported import FOREIGN_LINK, MISSING_FILE, UNKNOWN_PART, FileSource, FindFile, LeftOut


class FileLinks:
    """The links of one conversation. `files` are the files that were found, by their new ids.

    `ids` are new ids that are known. They are final when a file is stored, because they are made from its bytes.
    """

    def __init__(self, find: FindFile, ids: Mapping[str, str] | None = None) -> None:
        self._find = find
        self._ids = dict(ids or {})
        self.files, self.left_out = dict[str, FileSource](), LeftOut()

    def renewed(self, message: ModelMessage) -> ModelMessage:
        """Return the message with new ids of files. The digests of tool results are made anew when it is stored."""
        parts: list[Any] = []
        for part in message.parts:
            content: Any = getattr(part, "content", None)
            if isinstance(part, FilePart):
                kept = self._file(part.content)
                parts.append(part if kept is content else replace(part, content=kept))
            elif content is None or isinstance(content, str):
                parts.append(part)
            else:
                new = self._value(content)
                parts.append(replace(cast(Any, part), content=new) if new != content else part)
        return cast(ModelMessage, replace(cast(Any, message), parts=parts))

    def renewed_entry(self, entry: Entry) -> Entry:
        """Return the entry with new ids of files in its message and note."""
        attachments = tuple(self.new_id(id_) for id_ in entry.note.attachments if is_id(id_))
        return replace(entry, message=self.renewed(entry.message), note=replace(entry.note, attachments=attachments))

    def new_id(self, id_: str) -> str:
        """Return the new id of a file. Without the file it is an id that no file has, and the link is dead."""
        if id_ not in self._ids:
            self._ids[id_] = new_file_id(type_of_id(id_))
            source = self._find(id_)
            if source is None:
                self.left_out[MISSING_FILE] += 1
            else:
                self.files[self._ids[id_]] = source
        return self._ids[id_]

    def _value(self, value: Any) -> Any:
        """Return a value of a prompt or tool result, whose depth was limited when it was parsed."""
        match value:
            case ImageUrl() | AudioUrl() | DocumentUrl():
                return self._link(value)
            case VideoUrl() | UploadedFile():
                self.left_out[UNKNOWN_PART] += 1
                return ""
            case list() | tuple():
                return [self._value(one) for one in cast(Sequence[Any], value)]
            case dict():
                return {name: self._value(one) for name, one in cast(Mapping[str, Any], value).items()}
            case _:
                return value

    def _link(self, link: ImageUrl | AudioUrl | DocumentUrl) -> Any:
        id_ = link.url.removeprefix(ROUTE)
        if not link.url.startswith(ROUTE) or not is_id(id_):
            self.left_out[FOREIGN_LINK] += 1
            return link.url
        return type(link)(ROUTE + self.new_id(id_), media_type=link.media_type, identifier=link.identifier)

    def _file(self, content: BinaryContent) -> BinaryContent:
        if content.data or not is_id(content.identifier):
            return content
        renewed = BinaryContent(b"", media_type=content.media_type, identifier=self.new_id(content.identifier))
        return BinaryContent.narrow_type(renewed)
