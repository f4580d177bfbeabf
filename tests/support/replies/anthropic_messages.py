"""Replies of the Messages API of Anthropic."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.dialect_server import Reply

Event = Mapping[str, Any] | bytes
MODEL = "claude-sonnet-5-5"


def begin(**usage: int) -> Event:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": MODEL}
    usage = {"input_tokens": 12, "output_tokens": 1, **usage}
    return {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}


def opens(index: int, **block: Any) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **delta: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def closes(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


def text(index: int, *deltas: str) -> list[Event]:
    words = [delta(index, type="text_delta", text=one) for one in deltas]
    return [opens(index, type="text", text=""), *words, closes(index)]


def cited(index: int, words: str, *citations: Mapping[str, Any]) -> list[Event]:
    """Return a text with citations, which come after its words."""
    opened, *deltas, closed = text(index, words)
    return [opened, *deltas, *(delta(index, type="citations_delta", citation=one) for one in citations), closed]


def page_citation(page: int, words: str, document: int = 0) -> dict[str, Any]:
    """Return the citation of words on a page of a document, which has no title."""
    return {
        "type": "page_location",
        "cited_text": words,
        "document_index": document,
        "document_title": None,
        "start_page_number": page,
        "end_page_number": page + 1,
        "file_id": None,
    }


def thinking(index: int, *deltas: str, signature: str) -> list[Event]:
    thoughts = [delta(index, type="thinking_delta", thinking=one) for one in deltas]
    signed = delta(index, type="signature_delta", signature=signature)
    return [opens(index, type="thinking", thinking="", signature=""), *thoughts, signed, closes(index)]


def redacted(index: int, data: str) -> list[Event]:
    return [opens(index, type="redacted_thinking", data=data), closes(index)]


def call(index: int, id_: str, *pieces: str, name: str = "weather") -> list[Event]:
    parts = [delta(index, type="input_json_delta", partial_json=one) for one in pieces]
    return [opens(index, type="tool_use", id=id_, name=name, input={}), *parts, closes(index)]


def ends(reason: str, output: int = 9, details: Any = None, **usage: int) -> list[Event]:
    stop = {"stop_reason": reason, "stop_sequence": None, "stop_details": details}
    last = {"type": "message_delta", "delta": stop, "usage": {"output_tokens": output, **usage}}
    return [last, {"type": "message_stop"}]


def fails(kind: str) -> Event:
    return {"type": "error", "error": {"type": kind, "message": "Something is wrong."}}


def reply(*events: Event | Sequence[Event], **more: Any) -> Reply:
    flat: list[Event] = []
    for event in events:
        flat += event if isinstance(event, list) else [event]  # type: ignore[list-item]
    return Reply(sse=flat, named=True, **more)


def answer(words: str) -> Reply:
    """Return an answer that is only text."""
    return reply(begin(), text(0, words), ends("end_turn"))


HI = answer("Hi.")
CALLS = ends("tool_use", 30)
PING: Event = {"type": "ping"}
