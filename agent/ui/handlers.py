"""What the page's events do: find out who is asking, call `Conversations`, say the outcome in widget values."""

import asyncio
import html
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from gradio.data_classes import FileData

from agent.catalog import ModelSpec
from agent.errors import AgentError
from agent.guard import GUARD, Guard
from agent.providers import preload
from agent.serving.walls import visitor_of
from agent.ui.examples import FILES, example_message
from agent.ui.gate import Gate
from agent.ui.inputs import plans
from agent.ui.links import Links
from agent.ui.live import LiveRun
from agent.ui.render import Wire
from agent.ui.seats import Seat, Seats
from agent.ui.start import Choices
from agent.ui.turn import WINDOW, Conversations
from agent.ui.widgets import (
    FOR_MODEL,
    KEYS,
    Given,
    attachments,
    choices_of,
    composer,
    key_panel,
    menu,
    notice,
    offer,
    switches,
    values,
)

log = logging.getLogger(__name__)
T = TypeVar("T")


class Handlers:
    """One method for each event. Holds nothing but which page shows which conversation, and what pages fetch.

    `guard` says from where pictures may be fetched.
    """

    def __init__(self, conversations: Conversations, guard: Guard = GUARD) -> None:
        self._all = conversations
        self._seats = Seats()
        settings = conversations.settings
        self._links = Links(guard, Gate(settings.public), max_bytes=settings.max_upload_bytes)

    # Showing

    async def opened(self, request: gr.Request) -> tuple[Any, ...]:
        """`/` was loaded: the visitor's last conversation, their settings, the models there are."""
        seat = self._seats.of(request)
        seat = self._seats.take(request, replace(seat, conversation=await self._all.last(seat.owner)))
        self._all.offers.keys.seen(seat.owner)
        chosen = self._all.choices(seat.owner)
        spec = self._all.spec(seat.owner, None)
        busy = seat.conversation is not None and self._all.live.busy(seat.conversation)
        return chosen.system_message, *self._menu(seat, spec), *self._for(seat, spec, chosen, busy=busy)

    async def watch(self, request: gr.Request) -> AsyncIterator[list[Wire] | dict[str, Any]]:
        """The conversation, and its answer while it is being written."""
        seat = self._seats.of(request)
        if seat.conversation is None:  # nothing, rather than an empty list that would come after a first message
            yield gr.skip()
            return
        async for view in self._all.watch(seat.owner, seat.conversation, seat.window, seat.words):
            yield view.messages

    async def settle(self, request: gr.Request) -> tuple[Any, Any]:
        """Give the buttons back when nothing is being written.

        A message may be sent while this is on its way: it looks at the run last, and gives back nothing that it did not
        find free.
        """
        seat = self._seats.of(request)
        if seat.conversation is None:
            return gr.skip(), gr.skip()
        view = await self._all.view(seat.owner, seat.conversation, seat.window)
        return gr.skip() if view.busy else composer(busy=False), gr.Button(visible=view.earlier)

    def earlier(self, request: gr.Request) -> None:
        """Show twice as much of the conversation."""
        seat = self._seats.of(request)
        self._seats.take(request, replace(seat, window=seat.window * 2))

    def news(self, model: str | None, request: gr.Request) -> tuple[Any, ...]:
        """The models there are and what the one to come is doing; asked for every second until all is settled."""
        seat = self._seats.of(request)
        timer = gr.Timer(active=not self._all.settled)
        spec = self._all.spec(seat.owner, model)
        if model and spec is not None and spec.id == model:
            return timer, *self._menu(seat, spec), *([gr.skip()] * FOR_MODEL)
        return timer, *self._menu(seat, spec), *self._for(seat, spec)

    async def model_chosen(self, model: str | None, request: gr.Request) -> tuple[Any, ...]:
        """A model was picked from the list, or its name typed. What it can take decides which switches there are."""
        seat = self._seats.of(request)
        chosen = self._all.choices(seat.owner)
        try:
            spec = self._all.offers.find((model or "").strip())
        except AgentError as error:
            gr.Warning(html.escape(str(error)), title=seat.words("no_model"))
            spec = self._all.spec(seat.owner, None)
        if spec is not None:
            self._all.choose(seat.owner, replace(chosen, model=spec.id, picked=True))
            asyncio.get_running_loop().run_in_executor(None, preload, spec.dialect)  # while the question is typed
        return *self._menu(seat, spec), *self._for(seat, spec)

    def switch(self, request: gr.Request) -> tuple[Any, ...]:
        """The better model that has come was accepted."""
        seat, spec = self._seats.of(request), self._all.offers.find("")
        if spec is not None:
            self._all.choose(seat.owner, replace(self._all.choices(seat.owner), model=spec.id))
        return *self._menu(seat, spec), *self._for(seat, spec)

    async def attached(self, value: dict[str, Any] | None, model: str | None, request: gr.Request) -> str:
        """What becomes of each attachment for the chosen model, said before anything is sent."""
        seat = self._seats.of(request)
        spec = self._all.spec(seat.owner, model)
        files = [str(file) for file in (value or {}).get("files") or []]
        if spec is None or not files or not _owned(files, request):
            return ""
        most, menu = self._all.settings.max_upload_bytes, self._all.offers.choosable(seat.owner, seat.login)
        return attachments(await plans([Path(file) for file in files], spec, max_bytes=most, menu=menu))

    async def fetched(self, asked: str, request: gr.Request) -> dict[str, Any]:
        """The picture at a link, `asked` as in "7 https://...": among `files`, as if uploaded, or why not in `text`."""
        assert request.request is not None
        seat, scope = self._seats.of(request), request.request.scope
        number, _, url = str(asked).partition(" ")
        try:
            picture = await self._links.fetch(seat.owner, f"{request.session_hash} {number}", url)
        except AgentError as error:
            return {"text": str(error), "files": []}
        if picture is None:
            return {"text": "", "files": []}
        path = str(picture.path)
        scope["state"]["walls"].give(path, visitor_of(scope))
        return {"text": "", "files": [FileData(path=path, orig_name=picture.path.name, mime_type=picture.media_type)]}

    def given_up(self, asked: str, request: gr.Request) -> None:
        """The picture that was `asked` for is not wanted any more."""
        self._links.give_up(f"{request.session_hash} {str(asked).partition(' ')[0]}")

    # Keys: in the loop of the server, where their clocks run

    async def key_typed(self, key: str, model: str | None, request: gr.Request) -> tuple[Any, ...]:
        """A key was given for the chosen model's provider. It goes into memory, and out of the box in any case."""
        seat = self._seats.of(request)
        spec = self._all.spec(seat.owner, model)
        provider = self._all.offers.provider(spec) if spec else None
        if provider is not None and self._all.offers.keys_taken:
            try:
                self._all.offers.keys.put(seat.owner, provider.id, key or "")
            except AgentError as error:
                gr.Warning(str(error), title=seat.words("not_taken"))
        return *self._menu(seat, spec), *self._keys(seat, spec)

    async def key_forgotten(self, model: str | None, request: gr.Request) -> tuple[Any, ...]:
        """The keys this visitor typed are to be forgotten, all of them."""
        seat = self._seats.of(request)
        self._all.offers.keys.forget(seat.owner)
        spec = self._all.spec(seat.owner, model)
        return *self._menu(seat, spec), *self._keys(seat, spec)

    async def still_here(self, model: str | None, request: gr.Request) -> tuple[Any, ...]:
        """A page is open in which a key was typed. Without this sign it is forgotten."""
        seat, keys = self._seats.of(request), self._all.offers.keys
        keys.seen(seat.owner)
        if keys.any(seat.owner):
            return tuple([gr.skip()] * KEYS)  # nothing changes while another key may be half typed
        return self._keys(seat, self._all.spec(seat.owner, model))

    # Doing

    async def accept(self, given: Given, request: gr.Request) -> Any:
        """A message was sent. The composer is emptied only when the message is kept."""
        seat = self._seats.of(request)
        choices = self._chosen(seat, given)
        seat, live = await send(self._all, values(given)["composer"], seat, choices, request)
        self._seats.take(request, seat)
        return composer(busy=live is not None, value=None)

    async def example(self, event: gr.SelectData, given: Given, request: gr.Request) -> Any:
        """A starter example was pressed: it is sent as if typed."""
        seat = self._seats.of(request)
        value = example_message(str(event.value["text"]), seat.words)
        seat, _ = await send(self._all, value, seat, self._chosen(seat, given), request)
        self._seats.take(request, seat)
        return composer(busy=True)

    async def option(self, event: gr.SelectData, given: Given, request: gr.Request) -> Any:
        """A button under a question was pressed: its words are the answer."""
        seat = self._seats.of(request)
        if seat.conversation is None:
            return gr.skip()
        choices = self._chosen(seat, given)
        live = await told(self._all.answer(seat.owner, seat.conversation, str(event.value), choices, seat.login))
        return composer(busy=live is not None)

    async def retry(self, given: Given, request: gr.Request) -> Any:
        """Answer the last message again."""
        seat = self._seats.of(request)
        if seat.conversation is not None:
            await told(self._all.retry(seat.owner, seat.conversation, self._chosen(seat, given), seat.login))
        return composer(busy=True)

    async def edit(self, event: gr.EditData, given: Given, request: gr.Request) -> Any:
        """A message was changed: it is sent again in its place."""
        seat = self._seats.of(request)
        if seat.conversation is None:
            return gr.skip()
        view = await self._all.view(seat.owner, seat.conversation, seat.window)
        index = event.index if isinstance(event.index, int) else event.index[0]
        entry = view.ids[index] if 0 <= index < len(view.ids) else None
        if entry is None:
            raise gr.Error(seat.words("not_changed"), print_exception=False)
        text = event.value if isinstance(event.value, str) else _text(event.value)
        await told(self._all.edit(seat.owner, seat.conversation, entry, text, self._chosen(seat, given), seat.login))
        return composer(busy=True)

    async def undo(self, request: gr.Request) -> Any:
        """The last message and its answer are taken back; its text goes into the composer."""
        seat = self._seats.of(request)
        if seat.conversation is None:
            return gr.skip()
        return composer(busy=False, value=await told(self._all.undo(seat.owner, seat.conversation)))

    def stop(self, request: gr.Request) -> None:
        """End the answer that is being written."""
        seat = self._seats.of(request)
        self._all.stop(seat.owner, seat.conversation)

    def new(self, request: gr.Request) -> tuple[Any, ...]:
        """An empty page. The conversation stays stored; a run in it goes on until its grace period ends."""
        seat = self._seats.of(request)
        self._seats.take(request, replace(seat, conversation=None, window=WINDOW))
        return [], gr.Button(visible=False), composer(busy=False)

    # How

    def _menu(self, seat: Seat, spec: ModelSpec | None) -> tuple[Any, Any, Any]:
        """The list of models, what is said of the one on its way, and the offer of one that has come."""
        said = "" if self._all.settled else notice(self._all.offers.local.status)
        better = self._all.better(seat.owner, spec.id if spec else "")
        return (
            menu(self._all.offers.menu(seat.owner, spec, seat.login, seat.words), spec),
            said,
            offer(better, seat.words),
        )

    def _for(
        self, seat: Seat, spec: ModelSpec | None, chosen: Choices | None = None, busy: bool | None = None
    ) -> tuple[Any, ...]:
        """All that depends on the chosen model."""
        return *switches(spec, chosen, busy, seat.words), *self._keys(seat, spec)

    def _keys(self, seat: Seat, spec: ModelSpec | None) -> tuple[Any, ...]:
        offers = self._all.offers
        provider = offers.provider(spec) if spec else None
        typed = provider is not None and offers.keys.get(seat.owner, provider.id) is not None
        missing = spec is not None and offers.key_missing(seat.owner, spec, seat.login)
        login = None if spec is None or not offers.may_log_in(spec) else "done" if seat.login else "possible"
        panel = key_panel(
            spec, provider, missing=missing, typed=typed, taken=offers.keys_taken, login=login, words=seat.words
        )
        return *panel, gr.Timer(active=offers.keys.any(seat.owner))

    def _chosen(self, seat: Seat, given: Given) -> Choices:
        """What the widgets say, remembered."""
        choices = replace(choices_of(given), picked=self._all.choices(seat.owner).picked)
        self._all.choose(seat.owner, choices)
        return choices


async def send(
    conversations: Conversations, value: dict[str, Any] | None, seat: Seat, choices: Choices, request: gr.Request
) -> tuple[Seat, LiveRun | None]:
    """Take a message whose files this visitor brought; return the seat at its conversation, and the answer.

    There is none where the message answered one of several questions.
    """
    if not _owned([str(file) for file in (value or {}).get("files") or []], request):
        raise gr.Error("An attachment could not be read. Attach it again.", print_exception=False)
    live = await told(conversations.send(seat.owner, seat.conversation, value, choices, seat.login))
    return (replace(seat, conversation=live.conversation) if live else seat), live


def _owned(files: Sequence[str], request: gr.Request) -> bool:
    """Whether this visitor brought the files, or they are ours to be tried."""
    assert request.request is not None
    scope = request.request.scope
    visitor, walls = visitor_of(scope), scope["state"]["walls"]
    return all(file in FILES.values() or walls.owns(file, visitor) for file in files)


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
