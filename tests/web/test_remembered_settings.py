"""Settings survive a reload, a change of model and another tab. The system prompt names the model and the day."""

import os
from dataclasses import fields, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from gradio_client import Client
from playwright.sync_api import expect

from agent.errors import InputError
from agent.i18n.translator import ENGLISH, LANGUAGES, Translator
from agent.models.catalog import ModelSpec, load_catalog
from agent.providers.connection import Effort
from agent.settings import LocalSettings, Settings
from agent.web.chat.choices import (
    MOST_TOKENS,
    Choices,
    RememberedSettings,
    requested_choices,
    set_by_visitor,
    usual_temperature,
)
from agent.web.chat.permit import run_limits, run_options
from agent.web.chat.system_prompt import ARTIFACTS, adapt_prompt, default_prompt, own_prompt, with_artifacts
from agent.web.chat.visitor import Visitor as Asker
from agent.web.ui.handlers import Handlers
from tests.conftest import App, Visit, becomes
from tests.support.models import LARGE, SMALL
from tests.support.scripted_server import Config, Running
from tests.support.views import chats_of, page_request, widgets

SETTINGS = Settings(local=LocalSettings(cache_dir=Path(os.devnull)))
QWEN = ModelSpec(id="vllm:q", name="Qwen/Qwen3-8B", label="Qwen3-8B", provider="vllm")


def test_page_asks_a_model_for_what_it_has() -> None:
    """And nothing at a limit: the next message goes on."""
    wanted = Choices(reasoning=True, effort="high", temperature=2.0)
    claude = replace(load_catalog().find("anthropic:claude-sonnet-5-5"), temperature=True)
    has_all, has_less = (run_options(SETTINGS, replace(claude, reasoning=has), wanted) for has in (True, False))
    assert (has_all.reasoning, has_all.temperature) == ("high", 1)
    assert has_less.reasoning is None
    assert not run_limits(SETTINGS).interactive


def test_reasoning_of_a_program_replaces_the_chosen_effort() -> None:
    asked = requested_choices("m", {"reasoning": True}, Choices(effort="high"), elsewhere="model")
    assert asked.wanted_reasoning is True


def day(when: date) -> str:
    return f"{when:%A}, {when.day} {when:%B} {when.year}"


def qwen_prompt() -> str:
    """Return today's default prompt, which can be from another day than the collection of the tests."""
    return (
        "You are Qwen3-8B, a model made by Alibaba Cloud. You answer on the page Switchboard. "
        f"Today is {day(date.today())}."
    )


@pytest.mark.parametrize(
    ("name", "provider", "is_large"),
    [
        ("Qwen/Qwen3-8B", "vllm", False),
        ("Qwen/Qwen3-235B-A22B", "vllm", True),
        ("openai/gpt-oss-20b", "huggingface", True),
        ("mistralai/Mixtral-8x7B", "vllm", True),
        ("qwen2.5_72b", "ollama", True),
        ("gemma3n:e4b", "openrouter", False),
        ("meta-llama/Llama-3.2-1B", "openrouter", False),
        ("gpt-6-luna", "openai", True),
        ("qwen2.5:0.5b", "ollama", False),
        ("my-model", "vllm", False),
    ],
)
def test_large_models_are_known_by_their_names(name: str, provider: str, is_large: bool) -> None:
    spec = ModelSpec(id=f"{provider}:{name}", name=name, label=name, provider=provider)
    assert with_artifacts("Be brief.", SETTINGS, spec) == ("Be brief.\n\n" + ARTIFACTS if is_large else "Be brief.")
    assert with_artifacts("", SETTINGS, spec) == "", "an empty prompt stays empty"
    assert with_artifacts("Be brief.", replace(SETTINGS, artifacts=False), spec) == "Be brief."


def test_default_prompt_names_model_maker_and_day() -> None:
    assert default_prompt(SETTINGS, QWEN) == qwen_prompt()
    other = qwen_prompt().replace("Qwen3-8B, a model made by Alibaba Cloud", "X")
    assert default_prompt(SETTINGS, replace(QWEN, name="x", label="X")) == other


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("I am {model} on {date}.", "I am Qwen3-8B on TODAY."),
        ('{"a": {x}} {0} {model', '{"a": {x}} {0} {model'),
        ("", ""),
    ],
    ids=["fields", "stray braces", "none"],
)
def test_owner_prompt_has_two_fields(template: str, filled: str) -> None:
    assert default_prompt(replace(SETTINGS, system_prompt=template), QWEN) == filled.replace("TODAY", day(date.today()))


@pytest.mark.parametrize("language", LANGUAGES)
def test_default_prompt_is_in_the_visitors_language(language: str) -> None:
    translator = Translator(language)
    today = default_prompt(SETTINGS, QWEN, translator)
    assert ("You are" in today) == (language == "en")
    assert all(word in today for word in ("Qwen3-8B", "Alibaba Cloud", SETTINGS.title, str(date.today().year)))
    for days in range(400):
        other = translator.weekday_and_date(date.today() - timedelta(days))
        shown = today.replace(translator.weekday_and_date(date.today()), other)
        assert own_prompt(shown, SETTINGS, [QWEN]) is None
    small = replace(QWEN, name="x", label="X")
    adapted = adapt_prompt(today + " Be brief.", SETTINGS, small, [QWEN], translator)
    assert adapted == default_prompt(SETTINGS, small, translator) + " Be brief."
    owners = replace(SETTINGS, system_prompt="I am {model} on {date}.")
    assert default_prompt(owners, QWEN, translator) == default_prompt(owners, QWEN), "the owner's is as it is written"


def test_default_prompt_stays_default_on_another_day() -> None:
    today = default_prompt(SETTINGS, QWEN)
    assert own_prompt(today, SETTINGS, [QWEN]) is None
    assert own_prompt(today.replace(day(date.today()), day(date.today() - timedelta(3))), SETTINGS, [QWEN]) is None
    for own in ("", "Be brief.", today + " Be brief.", today.replace("Qwen3-8B", "Bob")):
        assert own_prompt(own, SETTINGS, [QWEN]) == own


@pytest.mark.parametrize(
    "template",
    [None, "You are {model}", "{model}, {date}:\n", "Today is {date}.", ""],
    ids=["default", "ends with the name", "ends with a line break", "no name", "none"],
)
def test_added_sentence_stays_with_another_model(template: str | None) -> None:
    settings = replace(SETTINGS, system_prompt=template)
    old = [replace(QWEN, label=label) for label in ("Qwen", "Qwen3", "Qwen3-8B")]
    new = replace(QWEN, name="x", label="X")
    yesterday = day(date.today() - timedelta(1))
    for spec in old:
        for added in (" Be brief.", "\nBe brief.", ""):
            text = default_prompt(settings, spec).strip() + added
            adapted = default_prompt(settings, new).strip() + added
            for shown in (text, text.replace(day(date.today()), yesterday)):
                assert adapt_prompt(shown, settings, new, old).strip() == adapted.strip()
    for own in ("", "Be brief.", "Be brief. You are Qwen3.", "You are Qwen3-80B.", "You are Qwen3.5."):
        assert adapt_prompt(own, settings, new, old) == own


async def test_new_model_is_named_in_extended_prompt(tmp_path: Path) -> None:
    handlers = Handlers(chats_of("", tmp_path, LARGE, SMALL), widgets())
    large, small = (default_prompt(SETTINGS, spec) + " Be brief." for spec in (LARGE, SMALL))
    conversations, visitor = handlers._conversations, handlers._sessions.get(page_request())
    owner = visitor.owner

    async def chosen(model: str, prompt: str, before: object = None) -> str:
        """Choose a model while the page shows this prompt. Return the prompt that it shows then."""
        shown = await handlers.model_chosen(model, {"system_message": prompt}, before, page_request())
        return shown[handlers.widgets.settings].get("system_message", prompt)

    await chosen(LARGE.id, "")
    conversations.choose(visitor, {"system_message": large})
    assert await chosen(SMALL.id, large) == small
    assert conversations.choices(owner).system_message == small
    sent = conversations.for_model(owner, Choices(model=LARGE.id, system_message=small), ENGLISH)
    assert sent.system_message == large, "sent before the page shows the new prompt"
    typed = "openai:gpt-typed-by-hand"
    shown = await chosen(typed, large)
    assert "You are Large" not in shown
    conversations.choose(visitor, {"system_message": shown})
    assert await chosen(LARGE.id, shown) == large
    await chosen(typed, large)
    conversations.choose_model(visitor, LARGE, ENGLISH)  # before its event
    assert await chosen(LARGE.id, shown, {"id": typed}) == large


async def test_model_without_tools_leaves_the_choice_alone(tmp_path: Path) -> None:
    handlers = Handlers(chats_of("", tmp_path, LARGE, SMALL), widgets())
    conversations, session = handlers._conversations, handlers._sessions.get(page_request())
    for option in ({"tools": True}, {"temperature": 0.3}):
        conversations.choose(session, option)
    for spec, on in ((SMALL, False), (LARGE, True)):
        shown = (await handlers.model_chosen(spec.id, {}, None, page_request()))[handlers.widgets.settings]
        assert (shown["tools"], shown["temperature"]) == (on, 0.3), spec.id
    conversations.remember(session, Choices(model=LARGE.id, tools=False))
    assert conversations.choices(session.owner).tools, "an older page undoes another page's setting"


@pytest.mark.parametrize("effort", [None, "high"])
def test_message_after_a_restart_remembers_what_the_page_shows(tmp_path: Path, effort: Effort | None) -> None:
    """What only shows the abilities of the model is not remembered as a choice of the visitor."""
    conversations = chats_of("", tmp_path, SMALL)
    usual = usual_temperature(SMALL)
    shown = Choices(model=SMALL.id, reasoning=effort or False, temperature=usual, max_tokens=64)
    conversations.remember(Asker(owner="ann"), shown)
    kept = conversations.choices("ann")
    assert (kept.model, kept.max_tokens, kept.temperature) == (SMALL.id, 64, None)
    assert (kept.reasoning, kept.effort) == (True, effort), "this model cannot reason"


def test_switch_of_a_model_that_always_reasons_is_no_choice() -> None:
    model = replace(LARGE, reasoning=True, always_reasons=True)
    assert set_by_visitor(Choices(model=model.id, reasoning=False), model).reasoning is Choices.reasoning


def test_limit_of_an_answer_is_at_most_the_highest(tmp_path: Path) -> None:
    conversations = chats_of("", tmp_path)
    conversations.choose(Asker(owner="ann"), {"max_tokens": 10**30})
    assert conversations.choices("ann").max_tokens == MOST_TOKENS


def test_setting_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    conversations = chats_of("", tmp_path)
    conversations.choose_effort(Asker(owner="ann"), "high")
    for option in ({"reasoning": False}, {"reasoning": True}, {"max_tokens": 64}, {"extract_text": True}):
        conversations.choose(Asker(owner="ann"), option)
    kept = conversations.choices("ann")
    assert kept == Choices(reasoning=True, effort="high", max_tokens=64, extract_text=True)


ODD: list[dict[str, Any]] = [
    {"max_tokens": 0},
    {"max_tokens": -1},
    {"max_tokens": 2.5},
    {"max_tokens": "64"},
    {"temperature": -1},
    {"temperature": float("nan")},
    {"temperature": "warm"},
    {"tools": "true"},
    {"system_message": None},
    {"colour": "red"},
]


@pytest.mark.parametrize("option", ODD, ids=str)
def test_odd_value_of_a_setting_is_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    conversations = chats_of("", tmp_path)
    conversations.choose(Asker(owner="ann"), {"max_tokens": 64, "temperature": 0.3})
    before = conversations.choices("ann")
    with pytest.raises(InputError):
        conversations.choose(Asker(owner="ann"), option)
    assert conversations.choices("ann") == before


async def test_extraction_setting_remembers_no_text(tmp_path: Path) -> None:
    handlers = Handlers(chats_of("", tmp_path), widgets())
    await handlers.attaching.extract_text({"extract_text": "x" * 3_800_000}, None, page_request())
    assert handlers._conversations.choices(handlers._sessions.get(page_request()).owner).extract_text is False


def test_oversized_choices_are_not_remembered() -> None:
    remembered, large = RememberedSettings(), "x" * 3_800_000
    for field in fields(Choices):
        remembered.put(Asker(owner=field.name), Choices(**{field.name: cast(Any, large)}))
        assert remembered.get(field.name) is None


# In the browser


SERVER = Config(models=("Qwen/Qwen3-8B", "my-org/Tuned"), rate=500.0)


def system_of(server: Running) -> str | None:
    """Return the system message of the newest request."""
    first = server.journal()[-1]["body"]["messages"][0]
    return first["content"] if first["role"] == "system" else None


def test_field_that_is_only_passed_through_changes_nothing(own: App, visit: Visit) -> None:
    visitor = visit(own.url, fresh=True)
    page, told = visitor.page, list[str]()
    temperature = page.locator("#temperature input[type=number]")
    answer = page.request.patch(f"{own.url}/settings", data={"temperature": 0.33})
    assert answer.ok, answer.text()
    page.reload()
    visitor.open_settings()
    expect(temperature).to_have_value("0.33")
    page.on("request", lambda request: told.append(request.url) if request.method == "PATCH" else None)
    for number in (temperature, page.locator("#max-tokens input")):
        number.focus()
        number.press("Tab")
    expect(temperature).to_have_value("0.33")
    with visitor.setting_is_told():
        temperature.fill("0.41")
        temperature.press("Enter")
    expect(temperature).to_have_value("0.4")
    assert len(told) <= 2  # what was typed, and what became of it


@pytest.mark.gate("Settings survive a reload.")
def test_settings_survive_reload_and_model_switch(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    page, prompt = visitor.page, visitor.page.get_by_label("System prompt")
    numbers = [page.locator(f"#{name} input[type=number]") for name in ("temperature", "max-tokens")]
    boxes = [page.locator(f"#{name} input") for name in ("reasoning", "tools", "extract-text")]
    tuned = qwen_prompt().replace("Qwen3-8B, a model made by Alibaba Cloud", "Tuned")

    def reloaded() -> tuple[object, ...]:
        """Reload the page and return what it shows."""
        page.reload()
        expect(visitor.box).to_be_enabled()
        expect(page.locator("#model-button")).to_have_text("Tuned")
        visitor.open_settings()
        return prompt.input_value(), *(one.input_value() for one in numbers), *(one.is_checked() for one in boxes)

    visitor.open_settings()
    expect(prompt).to_have_value(qwen_prompt())
    visitor.close_settings()
    visitor.choose("Tuned")
    expect(prompt).to_have_value(tuned)
    visitor.open_settings()
    for typed, shown in (("9", "2"), ("", "2"), ("0.333333333", "0.35")):
        numbers[0].focus()
        numbers[0].fill(typed)
        numbers[0].press("Tab")
        expect(numbers[0]).to_have_value(shown)
    with visitor.setting_is_told():
        numbers[1].fill("512")
        numbers[1].press("Tab")
    with visitor.setting_is_told():
        page.locator("#tools input").check()
    with visitor.event_begins():
        page.locator("#extract-text input").check()
    becomes((tuned, "0.35", "512", False, True, True), reloaded)
    visitor.shot("settings-after-reload")
    visitor.close_settings()
    visitor.ask("!text One.")
    assert system_of(server) == tuned
    assert server.journal()[-1]["body"]["temperature"] == 0.35
    visitor.open_settings()
    with visitor.setting_is_told():
        prompt.fill("")
        prompt.blur()
    visitor.shot("settings-no-prompt")
    becomes(("", "0.35", "512", False, True, True), reloaded)
    visitor.close_settings()
    visitor.ask("!text Two.")
    assert "You are" not in str(system_of(server))
    visitor.choose("Qwen3-8B")
    expect(page.locator("#about")).to_contain_text("Qwen3-8B")
    expect(prompt).to_have_value("")


@pytest.mark.browser
def test_typed_prompt_survives_a_reload_at_once(own: App, visit: Visit) -> None:
    """The field has not been left, and the page has not waited for more."""
    visitor = visit(own.url)
    prompt = visitor.page.get_by_label("System prompt")
    visitor.open_settings()
    prompt.fill("Be brief.")

    def reloaded() -> str:
        visitor.reload()
        visitor.open_settings()
        return prompt.input_value()

    becomes("Be brief.", reloaded)


def test_programs_have_the_default_prompt(own: App, server: Running) -> None:
    client = Client(own.url, verbose=False)
    client.predict({"text": "!text One.", "files": []}, api_name="/chat")
    assert system_of(server) == qwen_prompt()
    for text, told in (("", None), ("Be brief.", "Be brief.")):
        client.predict({"text": "!text Two.", "files": []}, "", {"system_message": text}, api_name="/chat")
        assert system_of(server) == told
