"""Reads a conversation of ChatGPT's export: an object of `conversations.json`, with files beside it in the ZIP file.

OpenAI publishes no schema. The format was taken from the description in
https://github.com/mitkury/chatgpt-export-parser (docs/chatgpt-data-export-format.md), and from the sample files of
https://github.com/danny-avila/LibreChat (api/server/utils/import/__data__). `mapping` is a tree of nodes with `parent`
and `message`, and `current_node` is the end of the branch that is shown.

An answer cites with marks: `cite` and the names of results between characters for private use, or 【12†source】 in
older files. `content_references`, `citations` and `search_result_groups` in the metadata have what they cite.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from pydantic_ai.messages import (
    Citation,
    CitationSource,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    WebCitationSource,
)

from agent.files.parts import fence
from agent.transfer.imported import (
    INTERNAL_MESSAGE,
    UNKNOWN_PART,
    UNKNOWN_SENDER,
    FindFile,
    ImportedConversation,
    LeftOut,
    Node,
)
from agent.transfer.imports.fields import (
    Attachments,
    Meaning,
    Messages,
    answer,
    cited,
    conversation,
    count_labels,
    document_source,
    made_by_model,
    mapping,
    moment,
    objects,
    prompt,
    sender,
    source_of,
    text,
    texts,
    tool_result,
    unmarked,
    web_source,
)

POINTERS = ("image_asset_pointer", "audio_asset_pointer", "video_container_asset_pointer")
CONTEXTS = ("user_editable_context", "model_editable_context", "system_message", "developer_content")
"""The types of content that ChatGPT does not show."""
HIDDEN_OUTPUTS = ("tether_browsing_display", *CONTEXTS)
"""The types of content of a tool's message that are no result of a call."""

_NEXT = "\ue202"
"""Separates the fields of a mark."""
_REFERENCE = re.compile(r"turn\d{1,4}[a-z_]{1,20}\d{1,4}")
_MARK = re.compile(
    r"\ue200(?P<mark>[^\ue200\ue201]*+)\ue201"
    r"|\ue200[\w\ue202,]*+"  # the text was cut in a mark
    r"|[\ue201-\ue20f]"  # around marked words
    r"|【(?P<number>\d{1,4})(?::\d{1,4})?†(?P<named>[^】\n]{0,300}+)】"
    r"|\b(?:file)?cite(?P<bare>(?:turn\d{1,4}[a-z]{1,20}\d{1,4})++)"  # a program has removed the private characters
)
_WORDS_AT = {"entity": 1, "url": 0, "link": 0, "link_title": 0}
"""The kinds of marks that have words to show, and which of their fields these are."""


def is_chatgpt(element: Mapping[str, Any]) -> bool:
    """Return True for an object of ChatGPT's export."""
    return isinstance(element.get("mapping"), dict | list)


def read_chatgpt(element: Mapping[str, Any], find: FindFile, left_out: LeftOut) -> ImportedConversation | None:
    """Return the conversation with all its branches, or None if it has no messages.

    Counts what is left out in `left_out`.
    """
    reader = _ChatReader(element, find, left_out)
    nodes = {id_: reader.node(id_) for id_ in reader.tree}
    count_labels(element, left_out, "conversation_template_id", "gizmo_id")
    return conversation(
        nodes,
        text(element.get("current_node")) or None,
        reader.attachments,
        left_out,
        source=source_of("chatgpt", element, "conversation_id", "id"),
        title=text(element.get("title")),
        created=moment(element.get("create_time")),
        updated=moment(element.get("update_time")),
        pinned=element.get("is_starred") is True or moment(element.get("pinned_time")) is not None,
    )


class _ChatReader:
    """Converts the nodes of one conversation."""

    def __init__(self, element: Mapping[str, Any], find: FindFile, left_out: LeftOut) -> None:
        given = element.get("mapping")
        nodes = {text(node.get("id")) or str(number): node for number, node in enumerate(objects(given))}
        self.tree: Mapping[str, Any] = nodes if isinstance(given, list) else mapping(given)
        self._parents = {child: id_ for id_, one in self.tree.items() for child in texts(mapping(one).get("children"))}
        self._model, self._left_out = text(element.get("default_model_slug")), left_out
        self.attachments = Attachments(find, left_out)
        self._results = dict[str, CitationSource]()
        """The meanings of search results in marks, by their names, such as "turn0search3"."""
        for node in self.tree.values():
            metadata = mapping(mapping(mapping(node).get("message")).get("metadata"))
            for group in objects(metadata.get("search_result_groups")):
                self._add_results(objects(group.get("entries")))

    def node(self, id_: str) -> Node:
        """Return a node with the messages that it becomes."""
        found = mapping(self.tree[id_])
        message = mapping(found.get("message"))
        parent = text(found.get("parent")) or self._parents.get(id_)
        return Node(parent=parent, messages=self._messages(id_, message) if message else [])

    def _messages(self, id_: str, message: Mapping[str, Any]) -> Messages:
        given, metadata = message.get("content"), mapping(message.get("metadata"))
        content = mapping(given) if isinstance(given, dict) else {"content_type": "text", "parts": given}
        author = message.get("author")
        role = sender(mapping(author).get("role") if isinstance(author, dict) else author)
        at = moment(message.get("create_time"))
        kind = text(content.get("content_type"))
        if metadata.get("is_visually_hidden_from_conversation") or role == "system" or kind in CONTEXTS:
            if _joined(content) or kind in CONTEXTS:
                self._left_out[INTERNAL_MESSAGE] += 1
            return []
        match role:
            case "user":
                replied = text(metadata.get("targeted_reply")).strip()  # words of an answer that the prompt is about
                quoted = ["> " + replied.replace("\n", "\n> ")] if replied else []
                return prompt([*quoted, *self._prompt_parts(content), *self._attached(content, metadata)], at)
            case "assistant":
                model = text(metadata.get("model_slug")) or self._model
                return answer(self._answer_parts(id_, message, content), model, at)
            case "tool":
                return self._tool_result(id_, content, metadata, at)
            case _:
                self._left_out[UNKNOWN_SENDER] += 1
                return []

    def _prompt_parts(self, content: Mapping[str, Any]) -> list[UserContent | None]:
        parts: list[UserContent | None] = [self._unmarked(words) for words in _strings(content)]
        for part in objects(content.get("parts")):
            if part.get("content_type") in POINTERS:
                parts.append(self.attachments.part(_pointer(part)))
            elif spoken := text(part.get("text")):  # the transcript of what was spoken
                parts.append(self._unmarked(spoken))
            elif audio := _pointer(mapping(part.get("audio_asset_pointer"))):
                parts.append(self.attachments.part(audio))
            else:
                self._left_out[UNKNOWN_PART] += 1
        if not parts and (written := _joined(content)):
            parts.append(self._unmarked(written))
        if not parts and text(content.get("content_type")) not in ("text", "multimodal_text"):
            self._left_out[UNKNOWN_PART] += 1
        return parts

    def _attached(self, content: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[UserContent | None]:
        """Return the files of a message that its content does not show."""
        shown = {_pointer(part) for part in objects(content.get("parts"))}
        attached = [one for one in objects(metadata.get("attachments")) if text(one.get("id")) not in shown]
        return [self.attachments.part(text(one.get("id")), text(one.get("name"))) for one in attached]

    def _answer_parts(
        self, id_: str, message: Mapping[str, Any], content: Mapping[str, Any]
    ) -> list[ModelResponsePart | None]:
        kind, recipient = text(content.get("content_type")), text(message.get("recipient"))
        if recipient not in ("", "all"):
            return [ToolCallPart(recipient[:64], {"input": _joined(content)}, tool_call_id=id_)]
        match kind:
            case "thoughts":
                thoughts = content.get("thoughts")
                found = [text(one.get("content")) or text(one.get("summary")) for one in objects(thoughts)]
                written = "\n\n".join(self._unmarked(one) for one in found or texts(thoughts) if one)
                return [ThinkingPart(written)] if written.strip() else []
            case "reasoning_recap":  # how long the model thought
                self._left_out[INTERNAL_MESSAGE] += 1
                return []
            case "code":
                return [TextPart(fence(_joined(content)))] if _joined(content) else []
            case _:
                pointed = [_pointer(part) for part in objects(content.get("parts"))]
                spoken = [text(part.get("text")) for part in objects(content.get("parts"))]
                written = _joined(content) or "\n\n".join(filter(None, spoken))
                files = [made_by_model(self.attachments.part(pointer)) for pointer in pointed if pointer]
                if not written and not files and kind not in ("text", "multimodal_text"):
                    self._left_out[UNKNOWN_PART] += 1
                metadata = mapping(message.get("metadata"))
                return [self._cited(written, metadata) if written.strip() else None, *files]

    def _tool_result(
        self, id_: str, content: Mapping[str, Any], metadata: Mapping[str, Any], at: datetime | None
    ) -> Messages:
        """Return the result of the call that the message answers. Of what answers no call, only files are imported."""
        call = self._call_before(id_)
        pointed = [_pointer(part) for part in objects(content.get("parts"))]
        drawn = objects(mapping(metadata.get("aggregate_result")).get("messages"))
        pointed += [text(one.get("image_url")).rpartition("://")[2] for one in drawn]
        files = [part for pointer in pointed if pointer and (part := self.attachments.part(pointer)) is not None]
        if call is None or content.get("content_type") in HIDDEN_OUTPUTS:
            if not files:
                self._left_out[INTERNAL_MESSAGE] += 1
            return answer([made_by_model(part) for part in files], self._model, at)
        written = self._unmarked(_joined(content))
        result: Any = [written, *files] if files else written
        name = text(mapping(self.tree[call]["message"]).get("recipient"))[:64]
        return [tool_result(ToolReturnPart(name, result, call), at)]

    def _call_before(self, id_: str) -> str | None:
        """Return the node of the tool call that this node answers."""
        found = text(mapping(self.tree[id_]).get("parent"))
        message = mapping(mapping(self.tree.get(found)).get("message"))
        if sender(mapping(message.get("author")).get("role")) != "assistant":
            return None
        hidden = mapping(message.get("metadata")).get("is_visually_hidden_from_conversation")
        return found if not hidden and text(message.get("recipient")) not in ("", "all") else None

    # Citations

    def _unmarked(self, written: str) -> str:
        return unmarked(written, _MARK, lambda mark: self._meaning(mark, {}))

    def _cited(self, written: str, metadata: Mapping[str, Any]) -> TextPart | None:
        """Return the text of an answer with what its marks cite."""
        known, more = dict[str | int, Mapping[str, Any]](), list[CitationSource | None]()
        for reference in objects(metadata.get("content_references")):
            if (marked := text(reference.get("matched_text"))).strip():
                known[marked] = reference
            else:  # such as the list of sources below an answer
                more += self._sources(reference)
        for citation in objects(metadata.get("citations")):
            found = mapping(citation.get("metadata"))
            number = mapping(found.get("extra")).get("cited_message_idx")
            for key in (citation.get("start_ix"), f"【{text(number)}"):
                if isinstance(key, int | str):
                    known.setdefault(key, found)
        part = cited(written, _MARK, lambda mark: self._meaning(mark, known), *more)
        return part and _without_repeats(part)

    def _meaning(self, mark: re.Match[str], known: Mapping[str | int, Mapping[str, Any]]) -> Meaning:
        """Return what to show in place of a mark, and what it cites. `known` are the references of the message."""
        keys = (mark[0], mark.start(), f"【{mark['number']}") if mark["number"] else (mark[0],)
        reference = next((known[key] for key in keys if key in known), dict[str, Any]())
        kind, *fields = (mark["mark"] or "").split(_NEXT)
        names = _REFERENCE.findall(mark["mark"] or mark["bare"] or "")
        sources = [*self._sources(reference)] or [self._results[name] for name in names if name in self._results]
        words = ""
        if kind in _WORDS_AT:
            words = _words(fields, _WORDS_AT[kind])
        if not sources and not words and not names:
            words = text(reference.get("alt")) or text(reference.get("name"))
        named = mark["named"] or ""
        if not sources and not reference and "." in named and known:  # the name of a file, as in 【4:0†rent.pdf】
            sources = [source] if (source := document_source(named)) else []
        return words, sources

    def _sources(self, reference: Mapping[str, Any]) -> Iterator[CitationSource]:
        """Yield the sources of a reference: pages, or a file."""
        pages = [
            reference,
            *(one for name in ("items", "sources", "fallback_items") for one in objects(reference.get(name))),
        ]
        pages += [one for page in pages for one in objects(page.get("supporting_websites"))]
        self._add_results(pages)
        found = [source for page in pages if (source := web_source(page, text(page.get("text"))[:2000]))]
        yield from found
        if not found and text(reference.get("type")) == "file":
            name = text(reference.get("name")) or text(reference.get("title"))
            passages = (text(reference.get("snippet")), text(reference.get("text")))
            if source := document_source(name, text(reference.get("id")), *passages):
                yield source

    def _add_results(self, pages: list[Mapping[str, Any]]) -> None:
        """Remember what the names of these pages mean in marks."""
        for page in pages:
            source = web_source(page)
            for id_ in [*objects(page.get("ref_id")), *objects(page.get("refs"))] if source else ():
                turn, kind, index = (text(id_.get(name)) for name in ("turn_index", "ref_type", "ref_index"))
                self._results.setdefault(f"turn{turn}{kind}{index}", cast("CitationSource", source))


def _words(fields: list[str], number: int) -> str:
    """Return the words of a mark: a field, or an item of a list in JSON."""
    try:
        given: Any = json.loads(fields[0])
    except (ValueError, IndexError, RecursionError):
        return text(fields[0]) if fields else ""
    found = cast("list[Any]", given) if isinstance(given, list) else []
    return text(found[number]) if len(found) > number else ""


def _without_repeats(part: TextPart) -> TextPart:
    """Return the text without citations of the whole of it whose pages others cite."""
    kept, pages = list[Citation](), set[str]()
    for citation in sorted(part.citations or (), key=lambda one: one.anchor is None):
        urls = {source.url for source in citation.sources if isinstance(source, WebCitationSource)}
        if citation.anchor or not urls or not urls <= pages:
            kept.append(citation)
        pages |= urls
    return replace(part, citations=kept or None)


def _pointer(part: Mapping[str, Any]) -> str:
    """Return the id of a file in a pointer such as `sediment://file_1a2b` or `file-service://file-1a2b`."""
    return text(part.get("asset_pointer")).rpartition("://")[2]


def _strings(content: Mapping[str, Any]) -> list[str]:
    """Return the texts in the parts of a content, which can be a text themselves."""
    parts = content.get("parts")
    found = cast("list[Any]", parts) if isinstance(parts, list) else [parts]
    return [words for part in found if (words := text(part)).strip()]


def _joined(content: Mapping[str, Any]) -> str:
    fields = (words for name in ("text", "result", "content") for words in texts(content.get(name)))
    return "\n\n".join([*_strings(content), *fields])
