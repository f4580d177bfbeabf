"""Turns of a transcript from the responses of runs, for programs that show them with `Transcript`."""

import json
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from itertools import count
from time import monotonic
from typing import Any

from agent.rendering.bubbles import Bubble, BubbleState, Turn
from agent.rendering.code_colors import colored
from agent.rendering.html import without_mark_signs
from agent.rendering.markdown import MOST, PICTURES, Blocks, to_blocks
from agent.responses import Response, ToolResultContent, fix_surrogates


class ResponseTurns:
    """Collects a conversation: `ask` for a person's message, `add` for each response to it, `end` after the last one.

    A bubble begins where `is_type_switched` is true and nowhere else. Only the open bubble is rendered anew.
    """

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._ids = count(1)
        self._texts: list[str] = []
        """The pieces of the open bubble's text."""
        self._answer: list[str] = []
        """The texts of the answer so far, in pieces."""
        self._blocks = Blocks()
        self._calls: list[tuple[str, Bubble]] = []
        """The calls without a result, with their ids, which some servers use twice."""
        self._began = 0.0

    @property
    def value(self) -> list[Turn]:
        """The turns, oldest first. Later updates change no list or dictionary of it."""
        self._draw()
        if not self._turns:
            return []
        last = self._turns[-1]
        bubbles: list[Bubble] = [{**bubble, "blocks": [*bubble["blocks"]]} for bubble in last["bubbles"]]
        return [*self._turns[:-1], {**last, "bubbles": bubbles}]

    def ask(self, text: str) -> None:
        """Begin a turn with a person's message."""
        self.end()
        asked: Bubble = {"kind": "user", "state": "done", "blocks": to_blocks(text, is_typed=True)}
        self._turns.append({"id": str(next(self._ids)), "bubbles": [asked], "is_running": True})
        self._answer = []

    def add(self, response: Response) -> None:
        """Add a response to the last turn."""
        if not self._turns or not self._turns[-1]["is_running"]:
            self._turns.append({"id": str(next(self._ids)), "bubbles": [], "is_running": True})
            self._answer = []
        if response.is_type_switched:
            self._close()
            self._begin(response)
        if response.type == "output_text" or response.type == "reasoning":
            self._texts.append(without_mark_signs(response.content))
        if response.type == "output_text":
            self._answer.append(response.content)

    def end(self, caption: str = "") -> None:
        """End the last turn. `caption` is shown below the answer."""
        if not self._turns or not self._turns[-1]["is_running"]:
            return
        self._close()
        for _, call in self._calls:
            call["state"] = "failed"
        self._calls.clear()
        turn = self._turns[-1]
        turn["is_running"] = False
        turn["text"] = "".join(self._answer)
        if caption:
            turn["caption"] = escape(caption)

    def _begin(self, response: Response) -> None:
        bubbles = self._turns[-1]["bubbles"]
        kind = "user" if response.type == "user_message" else response.type
        bubble: Bubble = {"kind": kind, "state": "done", "blocks": []}
        match response.type:
            case "output_text" | "reasoning":
                self._blocks, self._texts, self._began = Blocks(), [], monotonic()
                bubble["state"] = "running"
                if response.type == "output_text" and self._answer:
                    self._answer.append("\n\n")
                if response.type == "reasoning":
                    bubble["seconds"] = 0.0
            case "tool_call":
                bubble["state"], bubble["title"] = "running", response.content["name"]
                bubble["blocks"] = [*_json(response.content["arguments"])]
                self._calls.append((response.content["id"], bubble))
            case "tool_call_result":
                bubble["state"], bubble["title"] = state, title = _state(response.content), _title(response.content)
                bubble["blocks"] = [*_result(response.content)]
                call = next((one for one in self._calls if one[0] == response.content["id"]), None)
                if call is not None and call[1] is bubbles[-1]:
                    bubble["inside"], bubble["title"] = True, "Result"
                if call is not None:
                    call[1]["state"], call[1]["title"] = state, title
                    self._calls.remove(call)
            case "user_message":
                bubble["blocks"] = to_blocks(response.content, is_typed=True)
            case "error":
                bubble["state"], bubble["blocks"] = "failed", [f"<p>{escape(fix_surrogates(response.content))}</p>"]
        bubbles.append(bubble)

    def _open(self) -> Bubble | None:
        """Return the bubble whose text grows."""
        bubbles = self._turns[-1]["bubbles"] if self._turns else []
        is_open = bubbles and bubbles[-1]["kind"] in ("output_text", "reasoning") and bubbles[-1]["state"] == "running"
        return bubbles[-1] if is_open else None

    def _draw(self, *, is_whole: bool = False) -> None:
        if (bubble := self._open()) is None:
            return
        self._texts = ["".join(self._texts)]
        self._blocks.update(self._texts[0], is_whole=is_whole)
        bubble["blocks"] = self._blocks.html

    def _close(self) -> None:
        if (bubble := self._open()) is not None:
            self._draw(is_whole=True)
            bubble["state"], bubble["blocks"] = "done", [*self._blocks.html]
            if bubble["kind"] == "reasoning":
                bubble["seconds"] = round(monotonic() - self._began, 1)


def _state(result: ToolResultContent) -> BubbleState:
    return "refused" if result.get("is_refused") else "failed" if result["is_error"] else "done"


def _title(result: ToolResultContent) -> str:
    return result["name"] if (state := _state(result)) == "done" else f"{result['name']} · {state}"


def _result(result: ToolResultContent) -> Iterator[str]:
    """Yield the text of a result, coloured if it is JSON, and its pictures."""
    text = result["content"]
    try:
        yield from _json(json.loads(text)) if text.lstrip()[:1] in ("{", "[") else _as_written(text)
    except (ValueError, RecursionError):
        yield from _as_written(text)
    for one in result.get("files", ()):
        if (kind := str(getattr(one, "media_type", ""))) in PICTURES and isinstance(
            data := getattr(one, "data", 0), bytes
        ):
            yield f'<p><img src="data:{kind};base64,{b64encode(data).decode()}" alt=""></p>'


def _json(value: Any) -> Iterator[str]:
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    html = colored(text := fix_surrogates(text), "json")
    yield from [f'<pre><code class="language-json">{html}</code></pre>'] if html else _as_written(text)


def _as_written(text: str) -> Iterator[str]:
    """Yield the text as it is, in blocks."""
    text = fix_surrogates(text)
    for at in range(0, len(text), MOST):
        yield f"<pre>{escape(text[at : at + MOST])}</pre>"
