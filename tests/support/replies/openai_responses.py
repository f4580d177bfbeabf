"""Replies of the Responses API of OpenAI."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from tests.support.dialect_server import Reply

USAGE = {
    "input_tokens": 5,
    "output_tokens": 7,
    "total_tokens": 12,
    "input_tokens_details": {"cached_tokens": 2},
    "output_tokens_details": {"reasoning_tokens": 3},
}
_numbers = count()
Event = Mapping[str, Any]


def event(kind: str, **fields: Any) -> Event:
    return {"type": kind, "sequence_number": next(_numbers), **fields}


def whole(status: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_790_000_000,
        "model": "gpt-6-luna",
        "status": status,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **fields,
    }


def created() -> list[Event]:
    return [event(f"response.{name}", response=whole("in_progress")) for name in ("created", "in_progress")]


def completed() -> list[Event]:
    return [event("response.completed", response=whole("completed", usage=USAGE))]


def incomplete(reason: str) -> list[Event]:
    ended = whole("incomplete", incomplete_details={"reason": reason}, usage=USAGE)
    return [event("response.incomplete", response=ended)]


def reasoning(*summaries: str, id_: str = "rs_1", seal: str | None = "gAAA", index: int = 0) -> list[Event]:
    at = {"item_id": id_, "output_index": index}
    out = [
        event("response.output_item.added", output_index=index, item={"id": id_, "type": "reasoning", "summary": []})
    ]
    for number, text in enumerate(summaries):
        here = {**at, "summary_index": number}
        half = len(text) // 2
        out += [
            event("response.reasoning_summary_part.added", **here, part={"type": "summary_text", "text": ""}),
            event("response.reasoning_summary_text.delta", **here, delta=text[:half], obfuscation="aX3"),
            event("response.reasoning_summary_text.delta", **here, delta=text[half:]),
            event("response.reasoning_summary_text.done", **here, text=text),
            event("response.reasoning_summary_part.done", **here, part={"type": "summary_text", "text": text}),
        ]
    said = [{"type": "summary_text", "text": text} for text in summaries]
    item = {"id": id_, "type": "reasoning", "summary": said, "encrypted_content": seal}
    return [*out, event("response.output_item.done", output_index=index, item=item)] if seal else out


def text(*deltas: str, id_: str = "msg_1", index: int = 1, phase: str | None = "final_answer") -> list[Event]:
    at = {"item_id": id_, "output_index": index, "content_index": 0}
    item = {"id": id_, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    item |= {"phase": phase} if phase else {}
    part = {"type": "output_text", "text": "".join(deltas), "annotations": []}
    return [
        event("response.output_item.added", output_index=index, item=item),
        event("response.content_part.added", **at, part={**part, "text": ""}),
        *(event("response.output_text.delta", **at, delta=delta, logprobs=[]) for delta in deltas),
        event("response.output_text.done", **at, text="".join(deltas), logprobs=[]),
        event("response.content_part.done", **at, part=part),
        event("response.output_item.done", output_index=index, item={**item, "content": [part], "status": "completed"}),
    ]


def call(
    *pieces: str, id_: str = "fc_1", call_id: str = "call_1", name: str = "weather", index: int = 1
) -> list[Event]:
    item = {"id": id_, "type": "function_call", "call_id": call_id, "name": name, "status": "in_progress"}
    made = {**item, "arguments": "".join(pieces), "status": "completed"}
    at = {"item_id": id_, "output_index": index}
    return [
        event("response.output_item.added", output_index=index, item={**item, "arguments": ""}),
        *(event("response.function_call_arguments.delta", **at, delta=piece) for piece in pieces),
        event("response.function_call_arguments.done", **at, name=name, arguments="".join(pieces)),
        event("response.output_item.done", output_index=index, item=made),
    ]


def refusal(words: str) -> list[Event]:
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return [
        event("response.refusal.delta", **at, delta=words[:4]),
        event("response.refusal.delta", **at, delta=words[4:]),
        event("response.refusal.done", **at, refusal=words),
    ]


def reply(*events: Sequence[Event | bytes], **more: Any) -> Reply:
    return Reply(sse=[one for some in events for one in some], named=True, **more)


def cited(words: str, *annotations: Mapping[str, Any]) -> Reply:
    """Return an answer that is only text, with annotations."""
    events = text(words)
    done = next(one for one in events if one["type"] == "response.content_part.done")
    done["part"]["annotations"] = list(annotations)
    where = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    added = [
        event("response.output_text.annotation.added", **where, annotation_index=number, annotation=one)
        for number, one in enumerate(annotations)
    ]
    at = next(number for number, one in enumerate(events) if one["type"] == "response.output_text.done")
    return reply(created(), events[:at], added, events[at:], completed())


def url_citation(words: str, about: str, url: str, title: str) -> dict[str, Any]:
    """Return the annotation that these words of the text cite a page."""
    start = words.index(about)
    return {"type": "url_citation", "start_index": start, "end_index": start + len(about), "url": url, "title": title}


def answer(words: str) -> Reply:
    """Return an answer that is only text."""
    return reply(created(), text(words), completed())


ANSWER = answer("Done.")
