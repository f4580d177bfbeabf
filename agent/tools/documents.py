"""The tools with which a model searches and reads the documents that are too long for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from agent.errors import AgentError, ToolError
from agent.files.for_model import MIN_BYTES, document_room
from agent.files.kinds import Document
from agent.files.long_documents import LongDocument
from agent.files.passages import excerpts_in_order, indexed_for, page_mark
from agent.files.ranking import CANDIDATES, Vectors, fused, ranked_both_ways
from agent.models.catalog import ModelSpec
from agent.system.threads import RANKING
from agent.tools.function_tools import Tool

MAX_RESULT_BYTES = 20_000
"""Bytes of a result, if the model can read much more. A result has at most a quarter of the room for documents."""
_SHARE = 4

_BY_WORDS = "Words that the passages have, in their language."
_BY_MEANING = "What the passages say, or words that they have."
_READ_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "description": "The name of the file."},
        "from": {"type": "integer", "description": "The number of the first page, counted from 1."},
        "to": {"type": "integer", "description": "The number of the last page."},
    },
    "required": ["file", "from", "to"],
}


def with_document_tools(
    tools: Mapping[str, Tool], documents: Sequence[LongDocument], spec: ModelSpec, vectors: Vectors | None = None
) -> Mapping[str, Tool]:
    """Return the tools, and those for these documents if the model can call tools. A given tool keeps its name."""
    if not documents or spec.tools == "none":
        return tools
    made = document_tools(documents, spec, vectors)
    return {**tools, **{tool.name: tool for tool in made if tool.name not in tools}}


def document_tools(
    documents: Sequence[LongDocument], spec: ModelSpec, vectors: Vectors | None = None
) -> tuple[Tool, Tool]:
    """Return `search_files` and `read_pages`. They reach nothing but these documents.

    With `vectors`, `search_files` finds passages by keywords and by vectors, joined by reciprocal rank fusion.
    """
    most = max(MIN_BYTES, min(document_room(spec) // _SHARE, MAX_RESULT_BYTES))
    names = ", ".join(one.described for one in documents)

    async def search_files(query: object = "") -> str:
        return await _search(documents, str(query), most, vectors)

    async def read_pages(**given: object) -> str:
        return await _read(documents, given, most)

    about = "about something" if vectors else "with certain words, which are compared as words, not by meaning"
    search = f"Search the files of this conversation for passages {about}. You have seen only parts of them"
    query = {"type": "string", "description": _BY_MEANING if vectors else _BY_WORDS}
    schema = {"type": "object", "properties": {"query": query}, "required": ["query"]}
    read = "Read whole pages of a file of this conversation, or its slides, sheets or sections"
    return (
        Tool(search_files, "search_files", schema=schema, description=f"{search}: {names}."),
        Tool(read_pages, "read_pages", schema=_READ_SCHEMA, description=f"{read}: {names}."),
    )


async def _search(documents: Sequence[LongDocument], query: str, max_bytes: int, vectors: Vectors | None) -> str:
    if not query.strip():
        raise ToolError("The query is empty: give some words that the passages have.")
    read = [await _document(one) for one in documents]
    # The ranking of a long text takes a second.
    passages, keywords = await RANKING.run(indexed_for, read, max_bytes, query)
    most = CANDIDATES if vectors else len(passages)
    by_keywords, by_vectors, note = await ranked_both_ways(vectors, passages, keywords, query, most)
    order = fused(by_keywords, by_vectors) if by_vectors else by_keywords
    found = await RANKING.run(excerpts_in_order, read, passages, order, max_bytes)
    texts = [
        f"{one.name}, from {one.unit}{'s' * (len(excerpt.pages) != 1)} {excerpt.ranges} of {one.count}:\n{excerpt.text}"
        for one, excerpt in zip(documents, found, strict=True)
        if excerpt
    ]
    if not texts:
        texts = [f"No passage has a word of {query[:200]!r}: {_listed(documents)}"]
    return "\n\n".join([*texts, f"[{note}]"] if vectors and not by_vectors else texts)


async def _read(documents: Sequence[LongDocument], given: Mapping[str, object], max_bytes: int) -> str:
    name = str(given.get("file", "")).strip()
    wanted = next((one for one in documents if one.name.casefold() == name.casefold()), None)
    if wanted is None:
        raise ToolError(f"There is no file {name!r}: {_listed(documents)}")
    first = _number(given.get("from"))
    last = _number(given.get("to")) if "to" in given else first
    if first is None or last is None:
        raise ToolError(f"The first and the last {wanted.unit} must be whole numbers: {_listed(documents)}")
    if not 1 <= first <= last <= wanted.count:
        raise ToolError(f"{wanted.name} has no {wanted.unit}s {first} to {last}: {_listed(documents)}")
    document = await _document(wanted)
    return _pages(wanted, document, first, last, max_bytes)


def _pages(one: LongDocument, document: Document, first: int, last: int, max_bytes: int) -> str:
    """Return the pages that fit, and say where to go on. A page that does not fit by itself is cut."""
    texts: list[str] = []
    for number in range(first, last + 1):
        text = f"{page_mark(document, number)}\n{document.pages[number - 1]}".rstrip()
        size = len(text.encode("utf-8", "replace")) + 2
        if size > max_bytes and not texts:
            cut = text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")
            rest = f"Cut: this {one.unit} is too long for one result. Search for what the rest of it may say."
            return f"{one.name}, {one.unit} {number} of {one.count}:\n{cut}\n[{rest}]"
        if size > max_bytes:
            rest = f"[{one.unit.capitalize()} {number} and later did not fit: read on from {number}.]"
            return f"{_head(one, first, number - 1)}\n" + "\n\n".join([*texts, rest])
        texts.append(text)
        max_bytes -= size
    return f"{_head(one, first, last)}\n" + "\n\n".join(texts)


def _head(one: LongDocument, first: int, last: int) -> str:
    numbers = f"{one.unit} {first}" if first == last else f"{one.unit}s {first}-{last}"
    return f"{one.name}, {numbers} of {one.count}:"


def _listed(documents: Sequence[LongDocument]) -> str:
    """Return the end of a sentence, which names the files."""
    return f"the files are {', '.join(one.described for one in documents)}."


def _number(value: object) -> int | None:
    """Return a whole number, also from a text, as small models write it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


async def _document(one: LongDocument) -> Document:
    try:
        return await one.read()
    except AgentError as error:
        raise ToolError(f"{one.name} cannot be read now: {error}") from error
