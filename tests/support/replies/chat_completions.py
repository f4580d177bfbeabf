"""Replies of a hosted Chat Completions API."""

from collections.abc import Mapping
from typing import Any

from tests.support.dialect_server import Reply

USAGE = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
DONE = b"data: [DONE]\n\n"
Chunk = Mapping[str, Any]


def chunk(*, finish: str | None = None, **delta: Any) -> Chunk:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def usage() -> Chunk:
    return {**chunk(), "choices": [], "usage": USAGE}


def calls(*pieces: Mapping[str, Any]) -> Chunk:
    return chunk(tool_calls=list(pieces))


def piece(arguments: str = "", index: int | None = 0, id: str | None = None, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {
        **({"index": index} if index is not None else {}),
        **({"id": id, "type": "function"} if id is not None else {}),
        "function": function,
    }


def reply(*chunks: Chunk | bytes, **more: Any) -> Reply:
    return Reply(sse=[*chunks, DONE], **more)


def ending(finish: str = "stop") -> tuple[Chunk, Chunk]:
    return chunk(finish=finish), usage()


ROLE = chunk(role="assistant", content="")
ANSWER = reply(ROLE, chunk(content="Done."), *ending())
