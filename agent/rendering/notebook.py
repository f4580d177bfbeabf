"""Writes responses and conversations as Markdown for notebooks: text as it is, reasoning folded, tools as rows.

A notebook fetches pictures and shows HTML without asking. So texts of models, tools and people lose both: a picture
becomes a link, and a tag is shown as written.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markdown_it import MarkdownIt
from pydantic_ai.messages import ModelMessage, ModelRequest, TextContent, UserPromptPart

from agent.rendering.sources import code_spans
from agent.responses import BubbleMarker, Response, fix_surrogates, pieces_of, steered_text

MOST_IN_ROW = 300
"""The most characters of arguments or of a result in a row."""
MOST_MESSAGES = 50
"""The newest messages of a conversation, which are shown."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_ACTS = re.compile(r"\\.|(?P<ticks>`+)|(?P<bangs>!++\[?)|(?P<tag><(?=[A-Za-z/!?]))")
_FIRST_TAG = re.compile(r"(\n[ \t>]*)<(?=[A-Za-z/!?])")
"""A tag at the beginning of a later line. It would end the paragraph, and so the code around it."""
_PUNCTUATION = re.compile(r"[^\w\s]|_")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*$")
_PIPE = re.compile(r"((?<!\\)\|)")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def _block_reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark").enable("table").disable("html_block")  # `tame` shows tags as written
    reader.core.ruler.enableOnly(["normalize", "block"])
    return reader


_BLOCKS = _block_reader()


@dataclass(slots=True)
class _Row:
    """A call of a tool and its result."""

    id: str
    name: str
    arguments: str
    result: str = "…"


def responses_to_markdown(responses: Sequence[Response], ending: str = "") -> str:
    """Return the responses of a run as Markdown. `ending` is the sentence below it."""
    return _joined([*_bubbles(responses), f"*{as_plain(ending)}*" if ending else ""])


def answer_to_markdown(messages: Sequence[ModelMessage], ending: str = "") -> str:
    """Return what came after the last prompt as Markdown. `ending` is the sentence below it."""
    prompts = [number for number, message in enumerate(messages) if _prompt(message) is not None]
    return responses_to_markdown(_responses(messages[prompts[-1] if prompts else 0 :]), ending)


def conversation_to_markdown(messages: Sequence[ModelMessage]) -> str:
    """Return the newest `MOST_MESSAGES` of a conversation as Markdown, the prompts as quotations."""
    shown = messages[-MOST_MESSAGES:]
    earlier = len(messages) - len(shown)
    pieces = [f"*{earlier} earlier messages*"] if earlier else []
    turn: list[ModelMessage] = []
    for message in shown:
        prompt = _prompt(message)
        if prompt is not None:
            pieces += [*_bubbles(_responses(turn)), _quotation(prompt)]
            turn = []
        turn.append(message)
    return _joined([*pieces, *_bubbles(_responses(turn))])


def tame(text: str) -> str:
    """Return Markdown of which nothing acts outside of itself: no pictures, no HTML, no fence without an end."""
    text = _CONTROL.sub("", re.sub("\r\n?", "\n", fix_surrogates(text)))
    lines = _LINE.findall(text)
    code, rows, words, end = set[int](), set[int](), set[tuple[int, int]](), ""
    for token in _BLOCKS.parse(text):
        first, after = token.map or (0, 0)
        if token.type in ("fence", "code_block"):
            code.update(range(first, after))
            closes = _FENCE.match(lines[after - 1]) if after - 1 > first else None
            is_open = not closes or not closes[1].startswith(token.markup)
            end = f"\n{token.markup}" if token.type == "fence" and not token.level and is_open else ""
        elif token.type == "tr_open":
            rows.add(first)
        elif token.type == "inline":
            words.add((first, after))
    blocks = {first: after for first, after in sorted(words)}
    out, at = list[str](), 0
    while at < len(lines):
        after = blocks.get(at, at + 1)
        block = "".join(lines[at:after])
        parts = _PIPE.split(block) if at in rows else [block]  # no code goes on in another cell
        out.append(block if at in code else "".join(map(_without_acts, parts)))
        at = after
    return "".join(out).rstrip() + end


def as_plain(text: str) -> str:
    """Return a text on one line of which Markdown changes nothing."""
    line = " ".join(_CONTROL.sub("", fix_surrogates(text)).split())
    return _PUNCTUATION.sub(lambda sign: f"&#{ord(sign[0])};", line)


def _without_acts(block: str) -> str:
    """Return the lines of a block without pictures and tags outside of its code."""
    ticks, pieces, at, done = code_spans(block), list[str](), 0, 0
    while found := _ACTS.search(block, at):
        at = found.end()
        if found["ticks"]:
            at = ticks.get(found.start(), at)
            pieces += [block[done : found.start()], _FIRST_TAG.sub(r"\1&lt;", block[found.start() : at])]
            done = at
        elif found["tag"] or (found["bangs"] or "").endswith("["):
            pieces += [block[done : found.start()], "&lt;" if found["tag"] else "["]
            done = at
    return "".join([*pieces, block[done:]])


def _quotation(text: str) -> str:
    return "\n".join(f"> {line}" for line in tame(text).split("\n"))


def _joined(pieces: Sequence[str]) -> str:
    return "\n\n".join(filter(None, pieces))


def _prompt(message: ModelMessage) -> str | None:
    """Return the text of a prompt, with names for its files; None for any other message, also one that steered."""
    if steered_text(message) is not None:
        return None
    parts = [part for part in message.parts if isinstance(part, UserPromptPart)]
    texts: list[str] = []
    for part in parts:
        for item in [part.content] if isinstance(part.content, str) else part.content:
            text = item.content if isinstance(item, TextContent) else item
            texts.append(text if isinstance(text, str) else f"[{getattr(text, 'media_type', 'file')}]")
    return "\n\n".join(texts) if parts else None


def _responses(messages: Sequence[ModelMessage]) -> list[Response]:
    mark, responses = BubbleMarker(), list[Response]()
    for message in messages:
        responses += map(mark, pieces_of(message))
        if isinstance(message, ModelRequest):
            mark.open = None
    return responses


def _bubbles(responses: Sequence[Response]) -> Iterator[str]:
    """Yield the bubbles. Calls and results that follow one another are one table."""
    for is_tools, group in groupby(responses, key=lambda one: one.type in ("tool_call", "tool_call_result")):
        if is_tools:
            yield _table([*group])
            continue
        texts: list[tuple[str, list[str]]] = []
        for response in group:
            if response.is_type_switched or not texts:
                texts.append((response.type, []))
            texts[-1][1].append(str(response.content))
        for kind, pieces in texts:
            text = "".join(pieces)
            if kind == "reasoning":
                yield f"<details><summary>Reasoning</summary>\n\n{tame(text)}\n\n</details>"
            elif kind == "user_message":
                yield _quotation(text)
            else:
                yield f"**Error:** {as_plain(text)}" if kind == "error" else tame(text)


def _table(responses: Sequence[Response]) -> str:
    rows: list[_Row] = []
    for response in responses:
        if response.type == "tool_call":
            content = response.content
            arguments = json.dumps(content["arguments"], ensure_ascii=False, default=str)
            rows.append(_Row(content["id"], content["name"], arguments))
        elif response.type == "tool_call_result":
            content = response.content
            row = next((one for one in rows if one.id == content["id"] and one.result == "…"), None)
            if row is None:  # that of a call in an earlier run
                rows.append(row := _Row(content["id"], content["name"], ""))
            files = [f"({file.media_type})" for file in content.get("files", ())]
            how = "refused: " if content.get("is_refused") else "failed: " if content["is_error"] else ""
            row.result = how + " ".join(filter(None, [content["content"], *files])) or "(nothing)"
    lines = ["| tool | arguments | result |", "|---|---|---|"]
    lines += [f"| {_cell(row.name)} | {_cell(row.arguments)} | {_cell(row.result)} |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Return a text for a cell, the beginning if it is long."""
    cut = text if len(text) <= MOST_IN_ROW else f"{text[:MOST_IN_ROW]}… ({len(text)} characters)"
    return f"<code>{as_plain(cut)}</code>" if cut.strip() else ""
