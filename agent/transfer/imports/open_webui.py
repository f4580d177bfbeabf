"""Reads a conversation of Open WebUI's export: an object of the array in its JSON file.

The schema is in https://docs.openwebui.com/features/chat-conversations/data-controls/import-export/. `chat.history` has
`messages`, a tree with `parentId`, and `currentId`, the end of the branch that is shown. Answers of newer versions have
their parts in `output`; older ones have reasoning and tool calls as `<details>` in their text.
"""

import html
import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, cast

from pydantic_ai.messages import (
    CitationSource,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
)

from agent.system.media_types import detect_mime
from agent.transfer.imported import (
    FAILED_ANSWER,
    FOREIGN_LINK,
    INTERNAL_MESSAGE,
    MISSING_FILE,
    RATING,
    UNKNOWN_PART,
    UNKNOWN_SENDER,
    UNUSABLE_FILE,
    FileSource,
    FindFile,
    ImportedConversation,
    LeftOut,
    Node,
)
from agent.transfer.imports.fields import (
    Attachments,
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
    quoted,
    sender,
    source_of,
    text,
    texts,
    tool_result,
    web_source,
)

Part = ModelResponsePart | ToolReturnPart | None

_ATTRIBUTE = re.compile(r"""([a-z_]{1,20})=(?:"([^"]*+)"|'([^']*+)')""")
_DETAILS = re.compile(r"""<details\b(?=[^<>]{0,200} type=["'])""")
_DETAILS_END, _SUMMARY_END = "</details>", "</summary>"
_THINK = re.compile(r"\s*+<(think|thinking|thought|reason|reasoning)>")
_THINK_END = re.compile(r"</(?:think|thinking|thought|reason|reasoning)>")
_SOURCE = re.compile(r"```(?:[^`]|`(?!``))*+(?:```)?|`[^`\n]++`|\[(\d{1,3}(?:, ?\d{1,3}){0,20})\](?!\()")
"""Code, or the numbers of sources in an answer."""


def is_open_webui(element: Mapping[str, Any]) -> bool:
    """Return True for an object of Open WebUI's export."""
    chat = _chat(element)
    history = mapping(chat.get("history")).get("messages")
    return isinstance(history, dict | list) or ("chat" in element and isinstance(chat.get("messages"), list))


def read_open_webui(element: Mapping[str, Any], find: FindFile, left_out: LeftOut) -> ImportedConversation | None:
    """Return the conversation with all its branches, or None if it has no messages.

    Counts what is left out in `left_out`.
    """
    chat = _chat(element)
    if text(chat.get("system")) or text(mapping(chat.get("params")).get("system")):
        left_out[INTERNAL_MESSAGE] += 1
    attachments = Attachments(find, left_out)
    models = texts(chat.get("models"))
    model = models[0] if len(models) == 1 else ""
    nodes = dict[str, Node]()
    history = mapping(chat.get("history"))
    tree = _tree(history.get("messages"), chat.get("messages"))
    parents = {child: id_ for id_, message in tree.items() for child in texts(message.get("childrenIds"))}
    for id_, message in tree.items():
        parent = text(message.get("parentId")) or parents.get(id_)
        nodes[id_] = Node(parent=parent, messages=_messages(id_, message, model, attachments, left_out))
        if merged := "\n\n".join(texts(mapping(message.get("merged")).get("content"))):
            at = moment(message.get("timestamp"))  # one answer that a model has made of several
            nodes[f"{id_}-merged"] = Node(parent=parent, messages=answer([TextPart(merged)], model, at))
    left_out.update([MISSING_FILE] * _missing_files(chat, tree))
    count_labels({**chat, **element}, left_out, "folder_id")
    return conversation(
        nodes,
        text(history.get("currentId")) or None,
        attachments,
        left_out,
        source=source_of("open-webui", element, "id"),
        title=text(element.get("title")) or text(chat.get("title")),
        created=moment(element.get("created_at")) or moment(chat.get("timestamp")),
        updated=moment(element.get("updated_at")),
        pinned=element.get("pinned") is True,
    )


def _chat(element: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the chat in an object of the export. Old versions have it as text."""
    given = element.get("chat")
    return mapping(_plain(given) if isinstance(given, str) else given) or element


def _tree(tree: Any, shown: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the messages by id. `shown` is the list of the branch that is shown, which very old chats have alone."""
    if isinstance(tree, dict) and tree:
        return {id_: mapping(message) for id_, message in cast("dict[str, Any]", tree).items()}
    found, before = dict[str, Mapping[str, Any]](), None
    for number, message in enumerate(objects(tree or shown)):
        id_ = text(message.get("id")) or str(number)
        id_ = id_ if id_ not in found else f"{id_}-{number}"
        found[id_] = {"parentId": before, **message}
        before = id_
    return found


def _missing_files(chat: Mapping[str, Any], tree: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the number of files of the whole chat that no message has."""
    own = {text(file.get("id")) for message in tree.values() for file in objects(message.get("files"))}
    return sum(1 for file in objects(chat.get("files")) if text(file.get("id")) not in own)


def _messages(
    id_: str, message: Mapping[str, Any], model: str, attachments: Attachments, left_out: LeftOut
) -> Messages:
    at = moment(message.get("timestamp"))
    content = message.get("content")
    files = [*objects(message.get("files")), *(one for one in objects(content) if one.get("type") == "image_url")]
    match sender(message.get("role")):
        case "user":
            found = [_file(id_, number, file, attachments, left_out) for number, file in enumerate(files)]
            return prompt([*texts(content), *found], at)
        case "assistant":
            parts = _output(message, left_out) or _with_details(id_, "\n\n".join(texts(content)), left_out)
            others = ("code_executions", "embeds", "statusHistory")
            left_out.update(UNKNOWN_PART for name in others for _ in objects(message.get(name)))
            made = [_file(id_, number, file, attachments, left_out) for number, file in enumerate(files)]
            parts += [made_by_model(part) for part in made]
            if message.get("error") and not any(parts):
                left_out[FAILED_ANSWER] += 1
            if text(mapping(message.get("annotation")).get("rating")):
                left_out[RATING] += 1
            sources = message.get("sources") or message.get("citations")
            name = text(message.get("model")) or text(message.get("modelName")) or model
            return _split(_with_sources(parts, sources), name, at)
        case "system":
            left_out[INTERNAL_MESSAGE] += 1
        case _:
            left_out[UNKNOWN_SENDER] += 1
    return []


def _with_sources(parts: Iterable[Part], given: Any) -> list[Part]:
    """Return the parts with citations of the sources whose numbers are in the texts."""
    sources = dict[str, CitationSource | None]()
    for source in objects(given):
        about, passages = mapping(source.get("source")), texts(source.get("document"))
        entries = objects(source.get("metadata")) or [{}]
        for number, entry in enumerate(entries):
            id_ = text(entry.get("source")) or text(about.get("id")) or text(about.get("name"))
            title = text(entry.get("title")) or text(entry.get("name")) or text(about.get("name"))
            urls = (text(one) for one in (entry.get("url"), entry.get("source"), about.get("url"), about.get("name")))
            pages = (web_source({"url": url, "title": title}, *passages[number : number + 1]) for url in urls)
            page = next((page for page in pages if page), None)
            sources.setdefault(id_, page or document_source(title, "", *passages[number : number + 1]))
    numbered = [*sources.values()]

    def read(mark: re.Match[str]) -> tuple[str, list[CitationSource | None]]:
        numbers = [int(number) - 1 for number in mark[1].split(",")] if mark[1] else []
        found = [numbered[number] for number in numbers if 0 <= number < len(numbered)]
        return ("" if found else mark[0]), found

    out = [cited(part.content, _SOURCE, read) if isinstance(part, TextPart) and numbered else part for part in parts]
    last = next((part for part in reversed(out) if isinstance(part, TextPart)), None)
    if last is not None and not any(isinstance(part, TextPart) and part.citations for part in out):
        more = cited(last.content, _SOURCE, lambda mark: (mark[0], ()), *numbered)
        out = [more if part is last else part for part in out]
    return out


def _file(
    id_: str, number: int, file: Mapping[str, Any], attachments: Attachments, left_out: LeftOut
) -> UserContent | None:
    """Return a file of a message: a picture as a data URL, or the text that was extracted from a document."""
    linked, inner = mapping(file.get("image_url")) or file, mapping(file.get("file"))
    url = text(linked.get("url"))
    name = text(file.get("name")) or text(inner.get("filename")) or text(file.get("id"))
    if extracted := text(mapping(inner.get("data")).get("content")):
        return quoted(name, extracted)
    if url.startswith("data:"):
        try:
            data = b64decode(url.partition(",")[2], validate=True)
        except (Base64Error, ValueError):
            left_out[UNKNOWN_PART] += 1
            return None
        read: Callable[[], bytes] = lambda: data  # noqa: E731
        return attachments.part_of(
            FileSource(name=f"{id_}/{number}", media_type=detect_mime(data), size=len(data), read=read)
        )
    if url.startswith(("http:", "https:")):
        left_out[FOREIGN_LINK] += 1
        return None
    return attachments.part(text(file.get("id")), url.rpartition("/")[2], name)


def _output(message: Mapping[str, Any], left_out: LeftOut) -> list[Part]:
    """Return the parts of an answer of a newer version."""
    parts, names = list[Part](), dict[str, str]()
    for item in objects(message.get("output")):
        written = "".join(texts(item.get("content")))
        match item.get("type"):
            case "message":
                parts.append(TextPart(written) if written.strip() else None)
            case "reasoning":
                parts.append(ThinkingPart(written) if written.strip() else None)
            case "function_call" if call := text(item.get("call_id")):
                names[call] = text(item.get("name"))[:64] or "tool"
                parts.append(ToolCallPart(names[call], text(item.get("arguments")) or None, tool_call_id=call))
            case "function_call_output" if (call := text(item.get("call_id"))) in names:
                parts.append(ToolReturnPart(names[call], "\n\n".join(texts(item.get("output"))), call))
            case _:
                left_out[UNKNOWN_PART] += 1
    return [part for part in parts if part is not None]


def _with_details(id_: str, content: str, left_out: LeftOut) -> list[Part]:
    """Return the parts of an answer of an older version. The search is linear in the text."""
    parts, at = list[Part](), 0
    while (opening := _DETAILS.search(content, at)) and (end := content.find(_DETAILS_END, opening.end())) >= 0:
        start = opening.start()
        head, _, body = content[start:end].partition(">")
        found = {name: html.unescape(value or other) for name, value, other in _ATTRIBUTE.findall(head)}
        before, at = content[at:start], end + len(_DETAILS_END)
        parts += _with_thoughts(before)
        inside = html.unescape(body.rpartition(_SUMMARY_END)[2] if _SUMMARY_END in body else body).strip()
        kind, call = found.get("type"), found.get("id") or f"{id_}-{start}"
        if kind == "tool_calls" and found.get("name"):
            parts.append(ToolCallPart(found["name"][:64], _plain(found.get("arguments", "")), tool_call_id=call))
            parts.append(ToolReturnPart(found["name"][:64], _as_text(_plain(found.get("result", ""))), call))
            left_out.update(UNUSABLE_FILE for name in ("files", "embeds") for _ in _listed(found.get(name, "")))
        elif kind == "code_interpreter":
            parts.append(ToolCallPart(kind, {"code": inside}, tool_call_id=call))
            parts.append(ToolReturnPart(kind, _as_text(_plain(found.get("output", ""))), call))
        else:
            lines = (line.removeprefix("> ").removeprefix(">") for line in inside.splitlines())
            parts.append(ThinkingPart("\n".join(lines)) if inside else None)
    return [part for part in (*parts, *_with_thoughts(content[at:])) if part is not None]


def _with_thoughts(content: str) -> list[Part]:
    """Return a text without the thoughts at its beginning, which tags enclose, and these thoughts."""
    parts = list[Part]()
    opening, closing = _THINK.match(content), _THINK_END.search(content)
    while opening or (closing and not parts and not content[: closing.start()].rpartition("\n")[2].strip()):
        inside = content[opening.end() if opening else 0 : closing.start() if closing else None].strip()
        parts.append(ThinkingPart(inside) if inside else None)
        content = content[closing.end() :] if closing else ""
        opening, closing = _THINK.match(content), _THINK_END.search(content)
        if not opening:
            break
    if content.strip():
        parts.append(TextPart(content.lstrip("\n") if parts else content))
    return parts


def _plain(written: str) -> Any:
    """Return a value that is JSON once or twice over: arguments are a JSON string in an attribute."""
    for _ in range(2):
        try:
            value: Any = json.loads(written)
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        written = value if isinstance(value, str) else json.dumps(value)
    return written


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _listed(written: str) -> list[Any]:
    """Return a list that is JSON once or twice over, [] for anything else."""
    for _ in range(2):
        try:
            value: Any = json.loads(written)
        except (ValueError, RecursionError, TypeError):
            return []
        if isinstance(value, list):
            return cast("list[Any]", value)
        written = value
    return []


def _split(parts: list[Part], model: str, at: datetime | None) -> Messages:
    """Return the messages of these parts: tool results are messages of their own between the model's."""
    out, so_far = Messages(), list[ModelResponsePart | None]()
    for part in parts:
        if isinstance(part, ToolReturnPart):
            out += answer(so_far, model, at)
            so_far = []
            out.append(tool_result(part, at))
        else:
            so_far.append(part)
    return out + answer(so_far, model, at)
