"""The page's handlers as models come and go: the models are fake, the handlers are real."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gradio as gr
import pytest

from agent.errors import InputError
from agent.files.store import MediaStore
from agent.history.memory import MemoryStore
from agent.models.catalog import ModelSpec
from agent.models.weights import Status
from agent.providers.connection import Endpoint, ServedModel
from agent.settings import LocalSettings, PublicSettings, Settings
from agent.web.app import build_conversations
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.visitor import Visitor as Asker
from agent.web.ui.api import stream_answer
from agent.web.ui.events import build
from agent.web.ui.handlers import Handlers
from agent.web.ui.layout import CALLS
from tests.support import media_files
from tests.support.live_folders import files_in
from tests.support.models import LARGE, SMALL, FakeLocalModels
from tests.support.scripted_server import Config, running
from tests.support.views import page_request, properties_of, widgets

QUICK = {"Message", "HTML", "JsonValue", "SettingsPanel", "TextValue", "Timer"}
"""The kinds of widgets whose values are quickly read and written."""


@pytest.fixture
def models() -> FakeLocalModels:
    return FakeLocalModels()


def chats(models: FakeLocalModels, folder: Path, **more: Any) -> Conversations:
    settings = Settings(local=LocalSettings(cache_dir=folder), **more)
    return build_conversations(settings, MemoryStore(), MediaStore(folder), models, tools=())


@pytest.fixture
async def handlers(models: FakeLocalModels, tmp_path: Path) -> Handlers:
    # A coroutine, because Gradio creates an event loop for widgets if none is running, and never closes it.
    return Handlers(chats(models, tmp_path), widgets())


async def test_page_shows_download_progress(handlers: Handlers, models: FakeLocalModels) -> None:
    models.status = Status("fetching", "Fetching <Large>.", 0.25)
    shown, ui = await handlers.refresh_models(None, page_request()), handlers.widgets
    notice = shown[ui.notice]
    assert properties_of(shown[ui.timer])["active"]
    assert shown[ui.model] is None
    assert "Fetching &lt;Large&gt;." in notice
    assert 'value="0.250"' in notice


async def test_page_asks_again_only_while_models_load(handlers: Handlers, models: FakeLocalModels) -> None:
    timer = handlers.widgets.timer
    assert not timer.active, "the page has asked already when it loads"
    for at_work in (False, True):
        models.serve(SMALL)
        models.status = Status("ready", "Fetching Large.", 0.5 if at_work else None)
        shown = await handlers.page_loaded(page_request())
        assert properties_of(shown[timer])["active"] is at_work


async def test_better_model_is_offered_not_forced(handlers: Handlers, models: FakeLocalModels) -> None:
    models.serve(SMALL)
    models.status = Status("ready", "Fetching Large.", 0.5)
    ui = handlers.widgets
    shown = await handlers.refresh_models(None, page_request())
    assert properties_of(shown[ui.timer])["active"]
    assert shown[ui.model] == SMALL.id
    assert shown[ui.switch] == ""
    models.serve(LARGE, SMALL)
    models.status = Status("ready", "Large answers.", None)
    shown = await handlers.refresh_models(SMALL.id, page_request())
    assert not properties_of(shown[ui.timer])["active"]
    assert ui.model not in shown
    assert "Large" in shown[ui.switch]
    assert shown[ui.notice] == ""
    shown = await handlers.switch(page_request())
    assert shown[ui.model] == LARGE.id
    assert shown[ui.switch] == ""


@pytest.mark.parametrize("named", ["openai:gpt-6-luna", "gpt-6-luna", SMALL.id])
async def test_model_refresh_undoes_nothing(handlers: Handlers, models: FakeLocalModels, named: str) -> None:
    """A key pasted a moment ago must not be reported missing, and a new choice must not be reverted."""
    models.serve(SMALL)
    shown, ui = await handlers.refresh_models(named, page_request()), handlers.widgets
    assert shown.keys() == {ui.timer, ui.notice, ui.switch}


async def test_own_prompt_stays(handlers: Handlers, models: FakeLocalModels) -> None:
    panel = handlers.widgets.settings
    assert panel not in await handlers.refresh_models(None, page_request()), (
        "there is no model yet, and the visitor may be typing"
    )
    models.serve(LARGE, SMALL)
    default = (await handlers.refresh_models(None, page_request()))[panel]["system_message"]
    assert "You are Large" in default
    for typed, shown in (("Be a pirate.", None), (default, default.replace("Large", "Small"))):
        updates = await handlers.model_chosen(SMALL.id, {"system_message": typed}, None, page_request())
        assert updates[panel].get("system_message") == shown


async def test_handlers_change_only_outputs_of_their_events(models: FakeLocalModels, tmp_path: Path) -> None:
    """Gradio refuses an update of a widget that is not an output of the event."""
    page = build(chats(models, tmp_path))
    kinds = {
        type(widget).__name__ for event in page.fns.values() if event.fn for widget in [*event.inputs, *event.outputs]
    }
    assert kinds <= QUICK, "Can its values be read and written without a file or much work?"
    outputs = {event.name: set(event.outputs) for event in page.fns.values()}
    handlers = next(cast(Any, event.fn).__self__ for event in page.fns.values() if event.name == "page_loaded")
    for served in ((), (SMALL,)):
        models.serve(*served)
        for name, shown in {
            "page_loaded": await handlers.page_loaded(page_request()),
            "refresh_models": await handlers.refresh_models(None, page_request()),
            "model_chosen": await handlers.model_chosen("", {}, None, page_request()),
            "switch": await handlers.switch(page_request()),
            "look": await handlers.look(page_request()),
            "key_typed": await handlers.key_typed("", "", page_request()),
            "key_forgotten": await handlers.key_forgotten("", page_request()),
            "still_here": await handlers.still_here("", page_request()),
        }.items():
            assert shown.keys() <= outputs[name], name
            assert not served or outputs[name] == shown.keys(), f"{name}: without a model, settings stay"
        extract_text = await handlers.attaching.extract_text({}, "", page_request())
        assert (extract_text.keys() == outputs["extract_text"]) if served else (extract_text == gr.skip())


async def test_refused_message_leaves_no_file(handlers: Handlers, models: FakeLocalModels, tmp_path: Path) -> None:
    models.serve(replace(LARGE, image=True, context_tokens=4096, usual_output_tokens=512))
    picture = tmp_path / "red.png"
    picture.write_bytes(media_files.picture("PNG"))
    message = {"text": "many words " * 9000, "files": [str(picture)]}
    with pytest.raises(InputError, match="tokens"):
        await handlers._conversations.send(Asker(owner="ann"), None, message, Choices())
    assert list(files_in(tmp_path)) == [picture]


async def test_picked_model_is_not_asked_again(handlers: Handlers, models: FakeLocalModels) -> None:
    models.serve(LARGE, SMALL)
    models.status = Status("ready", "", None)
    await handlers.model_chosen(SMALL.id, {}, None, page_request())
    offer = (await handlers.refresh_models(SMALL.id, page_request()))[handlers.widgets.switch]
    assert offer == ""


async def test_unknown_name_keeps_chosen_model(handlers: Handlers, models: FakeLocalModels) -> None:
    """This also holds during the page's refresh, once a second, while the name is in the box."""
    models.serve(LARGE, SMALL)
    models.status = Status("ready", "", None)
    await handlers.model_chosen(SMALL.id, {}, None, page_request())
    menu = handlers.widgets.model
    assert (await handlers.refresh_models("nobody", page_request()))[menu] == SMALL.id
    shown = await handlers.model_chosen("nobody", {}, None, page_request())
    assert shown[menu] == SMALL.id
    assert "openai:nobody" in shown[handlers.widgets.chosen]["problem"]


async def test_missing_model_gives_way_to_an_available_one(handlers: Handlers, models: FakeLocalModels) -> None:
    models.serve(LARGE)
    models.status = Status("ready", "", None)
    menu = (await handlers.refresh_models(SMALL.id, page_request()))[handlers.widgets.model]
    assert menu == LARGE.id


@pytest.mark.parametrize(
    ("spec", "interactive", "words"),
    [(SMALL, False, "This model, or its server, takes no tools."), (LARGE, True, "Calculator, clock")],
    ids=["no-tools", "tools"],
)
async def test_tools_switch_follows_model(
    handlers: Handlers, models: FakeLocalModels, spec: ModelSpec, interactive: bool, words: str
) -> None:
    models.serve(spec)
    panel = (await handlers.model_chosen(spec.id, {}, None, page_request()))[handlers.widgets.settings]
    assert panel["about"]["tools"]["fixed"] is not interactive
    assert words in panel["about"]["tools"]["info"]


async def test_finished_answer_still_reaches_listener(handlers: Handlers, models: FakeLocalModels) -> None:
    with running(Config(rate=0, models=("large",))) as server:
        models.served = (ServedModel(LARGE, Endpoint(server.base_url)),)
        conversations = handlers._conversations
        live = await conversations.send(Asker(owner="ann"), None, {"text": "!text Quick."}, Choices())
        await live.run
        await conversations.live_runs.close()  # wait until the run is forgotten
        assert not conversations.live_runs.is_busy(live.conversation_id)
        answers = [answer async for answer in stream_answer(live)]
        await conversations.aclose()
    assert (answers[-1]["text"], answers[-1]["finish_reason"]) == ("Quick.", "stop")


@pytest.mark.parametrize("taken", [True, False], ids=["at home", "over a link"])
async def test_share_link_takes_no_typed_key(models: FakeLocalModels, tmp_path: Path, taken: bool) -> None:
    conversations = chats(models, tmp_path, public=PublicSettings(keys=taken))
    page = Handlers(conversations, widgets())
    shown = await page.key_typed("sk-of-a-visitor", "openai:gpt-6-luna", page_request())
    words, box = shown[page.widgets.key_said], shown[page.widgets.key]
    session = page._sessions.get(page_request())
    assert (conversations.models.keys.get(session.owner, "openai") == "sk-of-a-visitor") is taken
    assert box == ""
    assert ("shared over a link" in properties_of(words)["value"]) is not taken
    conversations.models.keys.forget(session.owner)


async def test_typed_names_do_not_pile_up_connections(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the-owners")
    menu = handlers._conversations.models
    kept, own = await menu.connect("ann", "openai:gpt-6-luna")
    assert not own
    assert (await menu.connect("bob", "openai:gpt-6-luna"))[0] is kept
    for number in range(3):
        assert (await menu.connect("ann", f"openai:gpt-of-{number}"))[1], "not closed after its run"
    assert len(menu._connections) == 1


async def test_scripts_call_the_server_through_the_chat_alone(models: FakeLocalModels, tmp_path: Path) -> None:
    """No hidden button is there to be clicked by a script, and no JSON component to be read by one."""
    page = build(chats(models, tmp_path))
    made = [cast(Any, one) for one in page.blocks.values()]
    assert not [one.elem_id for one in made if isinstance(one, gr.Button) and one.visible == "hidden"]
    assert not [one for one in made if isinstance(one, gr.JSON)]
    [chat] = [one._id for one in made if one.elem_id == "chat"]
    called = {name for event in page.fns.values() for id_, name in event.targets if id_ == chat}
    assert called == {*CALLS}
