"""The output of a run as its readers see it: the responses so far, notifications of more, and the result.

`Run` is such a stream. Its loop writes to it, and knows nothing else of the run.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Any, Generic

from pydantic_ai.messages import ModelRequest

from agent.errors import InputError
from agent.events import (
    Observers,
    ResponseEmitted,
    RunCancelled,
    RunEnded,
    StateSnapshot,
    ToolOutput,
    UserInputRequested,
)
from agent.providers.connection import MOST_SOUND, SoundPiece
from agent.providers.retry import Wait
from agent.responses import PART_SEPARATOR, BubbleMarker, Piece, Response, make_response
from agent.result import OutputT, RunResult

MOST_OUTPUT = 50_000
"""The most characters that are shown of what a running tool yields."""


@dataclass(frozen=True, slots=True, eq=False)
class Steering:
    """A message for the next step of a run. `is_taken` gets True once the run has stored it, or False if it never will.

    Whoever sent it can cancel `is_taken` to take it back.
    """

    text: str
    message: ModelRequest
    is_taken: asyncio.Future[bool]

    def settle(self, *, is_taken: bool) -> None:
        """Say what has become of the message. A second call does nothing."""
        if not self.is_taken.done():
            self.is_taken.set_result(is_taken)


class RunStream(Generic[OutputT]):
    """The stream of responses of one run. Any number of readers can follow it. Only the run writes to it."""

    def __init__(self, observers: Observers, *, ignore_reasoning: bool = False) -> None:
        self.responses: list[Response] = []
        """All responses so far.

        Some servers leave out the tag before the model's thoughts. Only its closing tag then shows that the text so far
        was reasoning, and the text's responses here become reasoning. An iteration has yielded them as text.
        """
        self.emitted_at: list[float] = []
        """The times of the responses on the monotonic clock."""
        self.relabelled: list[int] = []
        """The numbers of responses that begin bubbles whose type was corrected, in the order of the corrections."""
        self.observers = observers
        """They get each response, too."""
        self.waiting: Wait | None = None
        """The current pause before a retry, or the place in the request queue; None if the run is not waiting."""
        self.refused: InputError | None = None
        """The error of a run that cannot begin, for example because a picture cannot be fetched.

        Iterating and awaiting raise it. Other readers see an `error` response.
        """
        self.result: RunResult[OutputT] | None = None
        """The result, or None before the end."""
        self.outputs: list[tuple[str, str]] = []
        """The texts that running tools show to people, with the ids of their calls."""
        self.sound: list[SoundPiece] = []
        """The pieces of the sound that the model has written, up to `MOST_SOUND`. The whole sound is in the result."""
        self._sound_left = MOST_SOUND
        self._output_left = dict[str, int]()
        self.steering = deque[Steering]()
        """The messages that wait for the next step."""
        self.steered: list[str] = []
        """The ids of those that the model has got."""
        self._ignore_reasoning = ignore_reasoning
        self._has_hidden = False
        self._mark = BubbleMarker()
        self._updated, self._text_ended, self._sounded = asyncio.Event(), asyncio.Event(), asyncio.Event()

    # For readers

    @property
    def done(self) -> bool:
        """True if the run has ended and `result` is set."""
        return self.result is not None

    @property
    def last_text(self) -> str:
        """The text of the last bubble that is one."""
        texts: list[str] = []
        for response in reversed(self.responses):
            if response.type == "output_text":
                texts.append(response.content)
            if texts and (response.is_type_switched or response.type != "output_text"):
                break
        return "".join(reversed(texts))

    async def wait_for_update(
        self,
        seen: int,
        *,
        outputs: float = inf,
        timeout: float | None = None,  # noqa: ASYNC109 - it does not raise
    ) -> None:
        """Wait until there are more than `seen` responses, the run has ended, or `waiting` changes.

        Returns after `timeout` seconds at the latest, and if tools have yielded more than `outputs` texts.
        """
        before = self.waiting
        try:
            async with asyncio.timeout(timeout):
                while (
                    len(self.responses) <= seen
                    and not self.done
                    and self.waiting is before
                    and len(self.outputs) <= outputs
                ):
                    self._updated.clear()
                    await self._updated.wait()
        except TimeoutError:
            return

    async def wait_until_done(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end without waking for each token, because each wake-up costs the page time.

        Return True if no more text will come. The result is set a little later, after the messages are saved.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._text_ended.wait()
        return self._text_ended.is_set()

    async def wait_for_sound(self, seen: int) -> bool:
        """Wait until there are more than `seen` pieces of sound. Return False if there will be no more."""
        while len(self.sound) <= seen and not self.done:
            self._sounded.clear()
            await self._sounded.wait()
        return len(self.sound) > seen

    # For the run

    def emit(self, piece: Piece) -> None:
        """Add a response, wake the readers and tell the observers. Skips reasoning if the run ignores it.

        Texts around skipped reasoning are adjacent for the readers, so a separator comes between them.
        """
        kind = piece[0]
        if self._ignore_reasoning and kind == "reasoning":
            self._has_hidden = True
            return
        has_hidden, self._has_hidden = self._has_hidden, False
        if has_hidden and kind == "output_text" and self.responses and self.responses[-1].type == kind:
            self._add((kind, PART_SEPARATOR))
        self._add(piece)

    def begin_bubble(self) -> None:
        """Let the next response begin a bubble, because another message came between."""
        self._mark.open, self._has_hidden = None, False

    def relabel(self, piece: Piece) -> None:
        """Give the responses of the last bubble another type. Who has read them keeps the old ones.

        A run that ignores reasoning shows a text that was hidden, and cannot hide one that was shown.
        """
        kind = piece[0]
        if self._ignore_reasoning:
            self._has_hidden = kind == "reasoning"
            if kind == "output_text":
                self.emit(piece)
            return
        first = len(self.responses) - 1
        while not self.responses[first].is_type_switched:
            first -= 1
        for number in range(first, len(self.responses)):
            content, begins = self.responses[number].content, number == first
            if begins and first and self.responses[first - 1].type == kind:
                content, begins = f"{PART_SEPARATOR}{content}", False
            self.responses[number] = make_response(kind, content, is_type_switched=begins)
        self._mark.open = kind
        self.relabelled.append(first)
        self._updated.set()

    def _add(self, piece: Piece) -> None:
        self._append(piece)
        if self.observers:
            self.observers(ResponseEmitted(self.responses[-1]))

    def add_output(self, output: ToolOutput, *, is_told: bool = True) -> None:
        """Show what a running tool tells. Of one call, `MOST_OUTPUT` characters are shown.

        `is_told=False`: the observers know it already, from an event of a run below.
        """
        if self.result is not None:  # the tool was left running
            return
        call_id, text = output.tool_call_id, _line_of(output)
        left = self._output_left.get(call_id, MOST_OUTPUT)
        self._output_left[call_id] = left - len(text)
        if left > 0 and text:
            self.outputs.append((call_id, text[:left]))
            self._updated.set()
            if self.observers and is_told:
                self.observers(replace(output, content=output.content[:left]))

    def add_sound(self, piece: SoundPiece) -> None:
        """Add a piece of the model's sound, for those who listen while it is written."""
        self._sound_left -= len(piece.samples)
        if self._sound_left >= 0:
            self.sound.append(piece)
            self._sounded.set()

    def set_waiting(self, wait: Wait | None) -> None:
        """Tell the readers what the run is waiting for, if anything."""
        self.waiting = wait
        self._updated.set()

    def end_text(self) -> None:
        """Tell the readers that no more text will come. The result follows when the messages are saved."""
        self._text_ended.set()

    def publish(self, result: RunResult[Any], cancel_reason: str | None = None) -> None:
        """Add an error if the run failed, set the result and wake all readers, then tell the observers.

        `cancel_reason` is that of a cancelled run.
        """
        if result.failed:
            self._append(("error", result.note.detail))
        self.result = result
        while self.steering:
            self.steering.popleft().settle(is_taken=False)
        for event in (self._text_ended, self._updated, self._sounded):
            event.set()
        if self.observers:  # last, after the readers are awake
            if result.failed:
                self.observers(ResponseEmitted(self.responses[-1]))
            self.observers(StateSnapshot(result.context))
            if result.suspension is not None:
                self.observers(UserInputRequested(result.suspension, result.pending))
            if result.finish_reason == "cancelled":
                self.observers(RunCancelled(cancel_reason or "", result.note.detail))
            self.observers(RunEnded(result))

    def _append(self, piece: Piece) -> None:
        self.emitted_at.append(monotonic())
        self.responses.append(self._mark(piece))
        self._updated.set()


def _line_of(output: ToolOutput) -> str:
    """Return what people read: the text, or a line with how far the call is."""
    if output.progress is None:
        return output.content
    total = f"/{output.total:g}" if output.total is not None else ""
    return f"{output.content} {output.progress:g}{total}".strip() + "\n"
