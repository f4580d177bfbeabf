"""What the page's events do: find out who is asking, call `Conversations`, say the outcome in widget values."""

import logging
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import gradio as gr

from agent.catalog import ModelSpec
from agent.errors import AgentError
from agent.history import new_id
from agent.ui.render import Wire
from agent.ui.turn import WINDOW, Choices, Conversations
from agent.ui.widgets import composer, menu, notice, offer, switches
from agent.walls import visitor_of

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Seat:
    """What one page remembers: which conversation it shows, how much of it, and who looks where no cookie says so.

    `owner` is who the seat was given to; a request that comes from anybody else gets a seat of its own.
    """

    owner: str
    guest: bool
    conversation: str | None = None
    window: int = WINDOW


class Handlers:
    """One method for each event. Holds nothing of its own."""

    def __init__(self, conversations: Conversations) -> None:
        self._all = conversations

    # Showing

    async def opened(self, request: gr.Request) -> tuple[Any, ...]:
        """`/` was loaded: the visitor's last conversation, their settings, the models there are."""
        seat = seat_of(None, request)
        seat = replace(seat, conversation=await self._all.last(seat.owner))
        chosen = self._all.choices(seat.owner)
        spec = self._all.spec(chosen.model)
        busy = seat.conversation is not None and self._all.live.busy(seat.conversation)
        return seat, chosen.system_message, *self._menu(seat, spec), *switches(spec, chosen, busy=busy)

    async def watch(self, seat: Seat | None, request: gr.Request) -> AsyncIterator[list[Wire] | dict[str, Any]]:
        """The conversation, and its answer while it is being written."""
        seat = seat_of(seat, request)
        if seat.conversation is None:  # nothing, rather than an empty list that would come after a first message
            yield gr.skip()
            return
        async for view in self._all.watch(seat.owner, seat.conversation, seat.window):
            yield view.messages

    async def settle(self, seat: Seat | None, request: gr.Request) -> tuple[Any, Any]:
        """Give the buttons back when nothing is being written.

        A message may be sent while this is on its way: it looks at the run last, and gives back nothing that it did not
        find free.
        """
        seat = seat_of(seat, request)
        if seat.conversation is None:
            return gr.skip(), gr.skip()
        view = await self._all.view(seat.owner, seat.conversation, seat.window)
        return gr.skip() if view.busy else composer(busy=False), gr.Button(visible=view.earlier)

    async def earlier(self, seat: Seat | None, request: gr.Request) -> Seat:
        """Show twice as much of the conversation."""
        seat = seat_of(seat, request)
        return replace(seat, window=seat.window * 2)

    def news(self, seat: Seat | None, model: str | None, request: gr.Request) -> tuple[Any, ...]:
        """The models there are and what the one to come is doing; asked for every second until all is settled."""
        seat = seat_of(seat, request)
        timer = gr.Timer(active=not self._all.settled)
        spec = self._all.spec(model or "")
        if model and spec is not None and spec.id == model:
            return timer, *self._menu(seat, spec), *([gr.skip()] * 6)
        return timer, *self._menu(seat, spec), *switches(spec)

    def model_chosen(self, seat: Seat | None, model: str, request: gr.Request) -> tuple[Any, ...]:
        """A model was picked from the list. What it can take decides which switches there are."""
        seat = seat_of(seat, request)
        self._all.choose(seat.owner, replace(self._all.choices(seat.owner), model=model, picked=True))
        return offer(None), *switches(self._all.spec(model))

    def switch(self) -> tuple[Any, ...]:
        """The better model that has come was accepted."""
        spec = self._all.spec("")
        return menu(self._all.models.served, spec), offer(None), *switches(spec)

    # Doing

    async def accept(
        self,
        value: dict[str, Any] | None,
        seat: Seat | None,
        model: str | None,
        system: str | None,
        reasoning: bool,
        warmth: float,
        most: float,
        tools: bool,
        request: gr.Request,
    ) -> tuple[Any, Any]:
        """A message was sent. The composer is emptied only when the message is kept."""
        seat = seat_of(seat, request)
        choices = self._chosen(seat, model, system, reasoning, warmth, most, tools)
        seat = await send(self._all, value, seat, choices, request)
        return seat, composer(busy=True, value=None)

    async def example(
        self,
        event: gr.SelectData,
        seat: Seat | None,
        model: str | None,
        system: str | None,
        reasoning: bool,
        warmth: float,
        most: float,
        tools: bool,
        request: gr.Request,
    ) -> tuple[Any, Any]:
        """A starter example was pressed: it is sent as if typed."""
        value = {"text": str(event.value["text"])}
        return await self.accept(value, seat, model, system, reasoning, warmth, most, tools, request)

    async def retry(
        self,
        seat: Seat | None,
        model: str | None,
        system: str | None,
        reasoning: bool,
        warmth: float,
        most: float,
        tools: bool,
        request: gr.Request,
    ) -> Any:
        """Answer the last message again."""
        seat = seat_of(seat, request)
        if seat.conversation is not None:
            await told(
                self._all.retry(
                    seat.owner, seat.conversation, self._chosen(seat, model, system, reasoning, warmth, most, tools)
                )
            )
        return composer(busy=True)

    async def edit(
        self,
        event: gr.EditData,
        seat: Seat | None,
        model: str | None,
        system: str | None,
        reasoning: bool,
        warmth: float,
        most: float,
        tools: bool,
        request: gr.Request,
    ) -> Any:
        """A message was changed: it is sent again in its place."""
        seat = seat_of(seat, request)
        if seat.conversation is None:
            return gr.skip()
        view = await self._all.view(seat.owner, seat.conversation, seat.window)
        index = event.index if isinstance(event.index, int) else event.index[0]
        entry = view.ids[index] if 0 <= index < len(view.ids) else None
        if entry is None:
            raise gr.Error("That message cannot be changed any more.", print_exception=False)
        text = event.value if isinstance(event.value, str) else _text(event.value)
        await told(
            self._all.edit(
                seat.owner,
                seat.conversation,
                entry,
                text,
                self._chosen(seat, model, system, reasoning, warmth, most, tools),
            )
        )
        return composer(busy=True)

    async def undo(self, seat: Seat | None, request: gr.Request) -> Any:
        """The last message and its answer are taken back; its text goes into the composer."""
        seat = seat_of(seat, request)
        if seat.conversation is None:
            return gr.skip()
        return composer(busy=False, value=await told(self._all.undo(seat.owner, seat.conversation)))

    def stop(self, seat: Seat | None, request: gr.Request) -> None:
        """End the answer that is being written."""
        seat = seat_of(seat, request)
        self._all.stop(seat.owner, seat.conversation)

    def new(self, seat: Seat | None, request: gr.Request) -> tuple[Any, ...]:
        """An empty page. The conversation stays stored; a run in it goes on until its grace period ends."""
        seat = seat_of(seat, request)
        return replace(seat, conversation=None, window=WINDOW), [], gr.Button(visible=False), composer(busy=False)

    # How

    def _menu(self, seat: Seat, spec: ModelSpec | None) -> tuple[Any, Any, Any]:
        """The list of models, what is said of the one on its way, and the offer of one that has come."""
        models = self._all.models
        said = "" if self._all.settled else notice(models.status)
        return menu(models.served, spec), said, offer(self._all.better(seat.owner, spec.id if spec else ""))

    def _chosen(
        self,
        seat: Seat,
        model: str | None,
        system: str | None,
        reasoning: bool,
        warmth: float,
        most: float,
        tools: bool,
    ) -> Choices:
        choices = Choices(
            model=model or "",
            picked=self._all.choices(seat.owner).picked,
            system_message=system or "",
            reasoning=bool(reasoning),
            temperature=float(warmth),
            max_tokens=int(most),
            tools=bool(tools),
        )
        self._all.choose(seat.owner, choices)
        return choices


def seat_of(seat: Seat | None, request: gr.Request) -> Seat:
    """The seat, if it is this visitor's; else a fresh one. The cookie is looked at each time, the widget never."""
    visitor = visitor_of(request.request.scope) if request.request else None
    if seat is not None and (seat.owner == visitor or (visitor is None and seat.guest)):
        return seat
    return Seat(owner=visitor or new_id(), guest=visitor is None)


async def send(
    conversations: Conversations, value: dict[str, Any] | None, seat: Seat, choices: Choices, request: gr.Request
) -> Seat:
    """Take a message whose files this visitor brought; return the seat at its conversation."""
    assert request.request is not None
    scope = request.request.scope
    for file in (value or {}).get("files") or []:
        if not scope["state"]["walls"].owns(str(file), visitor_of(scope)):
            raise gr.Error("An attachment could not be read. Attach it again.", print_exception=False)
    conversation = await told(conversations.send(seat.owner, seat.conversation, value, choices))
    return replace(seat, conversation=conversation)


async def told(work: Awaitable[T]) -> T:
    """Await; say what goes wrong in a toast, in a sentence of ours or in none of anybody's."""
    try:
        return await work
    except AgentError as error:
        raise gr.Error(str(error), title="Not sent", print_exception=False) from error
    except Exception as error:
        log.exception("an event failed")
        raise gr.Error(
            "Something went wrong in this program; its log has the details.", print_exception=False
        ) from error


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n\n".join(str(part.get("text", "")) for part in content)  # pyright: ignore
    return str(content.get("text", "")) if isinstance(content, dict) else str(content)  # pyright: ignore
