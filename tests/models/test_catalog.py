"""The catalogue of models: it finds every usual name, and its facts are consistent and agree with the libraries."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from capability_table import BEGIN, END, PAGE, table, written
from genai_prices.data import providers as priced
from genai_prices.types import ModelPrice, TieredPrices
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.profiles.anthropic import anthropic_model_profile
from pydantic_ai.profiles.google import google_model_profile
from pydantic_ai.profiles.grok import grok_model_profile
from pydantic_ai.profiles.openai import openai_model_profile

from agent import Agent
from agent.errors import ConfigError, UnknownModel
from agent.i18n.translator import Translator
from agent.models.catalog import TABLE, Catalog, ModelSpec, guess, load_catalog

CATALOG = load_catalog()
SPECS = tuple(CATALOG.models.values())
TODAY = date(2026, 11, 20)

TYPED = {
    "openai": """
        o4-mini o3 o3-pro o3-mini gpt-4o gpt-4o-mini gpt-4.1 gpt-4.1-mini gpt-4.1-nano gpt-4o-audio-preview gpt-audio
        gpt-audio-mini gpt-audio-1.5 gpt-5 gpt-5-mini gpt-5-nano gpt-5.4-nano gpt-5.1 gpt-6.1-sol gpt-6.1-terra
        gpt-6-astra gpt-6-sol gpt-6-luna gpt-5.6-sol gpt-5.6-terra gpt-5.6-luna gpt-5.5 gpt-5.4 gpt-5.4-mini
    """,
    "google": """
        gemini-2.5-flash gemini-2.5-pro gemini-2.0-flash gemini-1.5-flash gemini-1.5-pro gemini-3.8-flash
        gemini-3.7-flash gemini-3.6-flash gemini-3.5-flash gemini-3.5-flash-lite gemini-2.5-flash-lite
        gemini-3.1-pro-preview gemini-4-argon gemini-4-carbon gemini-4-hydrogen
    """,
    "anthropic": """
        claude-sonnet-4-5 claude-sonnet-4-20250514 claude-opus-4-20250514 claude-3-7-sonnet-20250219
        claude-3-5-haiku-20241022 claude-3-opus-20240229 claude-3-sonnet-20240229 claude-3-5-sonnet-20241022
        claude-3-5-sonnet-20240620 claude-3-haiku-20240307 claude-opus-5-5 claude-sonnet-5-5 claude-haiku-5-5
        claude-fable-5-2 claude-mythos-5-2 claude-opus-5 claude-sonnet-5 claude-fable-5 claude-opus-4-8
        claude-opus-4-7 claude-opus-4-6 claude-opus-4-5 claude-sonnet-4-6 claude-haiku-4-5
    """,
    "xai": """
        grok-4.7 grok-4.6 grok-4.5 grok-4.3 grok-4.20 grok-4.20-non-reasoning grok-4 grok-4-0709 grok-4-fast
        grok-4-1-fast grok-code-fast-1 grok-3 grok-3-fast grok-3-mini grok-3-mini-fast grok-2 grok-2-1212
        grok-2-vision-1212 grok-2-image-1212
    """,
    "vllm": """
        Qwen/Qwen3-0.6B Qwen/Qwen3-1.7B Qwen/Qwen3-4B Qwen/Qwen3-8B Qwen/Qwen3-14B Qwen/Qwen3-32B Qwen/Qwen3-30B-A3B
        Qwen/Qwen3-VL-8B-Instruct Qwen/Qwen3-VL-8B-Thinking Qwen/Qwen3-Omni-30B-A3B-Instruct
        Qwen/Qwen3-Omni-30B-A3B-Thinking
    """,
}
"""Names that people type, by their provider."""

PROFILES: dict[str, Callable[[str], Any]] = {
    "openai": openai_model_profile,
    "google": google_model_profile,
    "anthropic": anthropic_model_profile,
    "xai": grok_model_profile,
}
HOSTED = [spec for spec in SPECS if spec.provider in PROFILES]
NO_EFFORT = {"grok-4", "grok-4-fast", "grok-4-1-fast", "grok-4.20", "grok-code-fast-1"}
"""Models that reason but have no setting for the effort, which is what the library's profile means."""


def for_each(cases: Iterable[Any]) -> Callable[[Callable[[Any], None]], Callable[[pytest.Subtests], None]]:
    """Check each case in one test, which reports all that fail. A test of its own for each would take longer."""

    def decorate(check: Callable[[Any], None]) -> Callable[[pytest.Subtests], None]:
        def test(subtests: pytest.Subtests) -> None:
            for case in cases:
                with subtests.test(getattr(case, "id", str(case))):
                    check(case)

        return test

    return decorate


# --- every name that people type ------------------------------------------------------------------------------------


@for_each([(provider, name) for provider, names in TYPED.items() for name in names.split()])
def test_typed_name_is_found_at_its_provider(typed: tuple[str, str]) -> None:
    provider, name = typed
    bare = CATALOG.find(name)
    assert (bare.id, bare.name, bare.provider) == (f"{provider}:{name}", name, provider)
    assert CATALOG.find(f"{provider}:{name}") == CATALOG.find(name, provider) == bare


def test_models_of_the_menu_have_labels_of_their_own() -> None:
    labels = [spec.label for spec in CATALOG.menu()]
    assert len(set(labels)) == len(labels)
    assert not any(spec.label == spec.name for spec in CATALOG.menu())


# --- finding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "id_"),
    {
        "GPT-4o": "openai:gpt-4o",
        " gpt-4o\n": "openai:gpt-4o",
        "OpenAI: GPT-4O ": "openai:gpt-4o",
        "claude:claude-opus-5-5": "anthropic:claude-opus-5-5",
        "Gemini:gemini-3.8-flash": "google:gemini-3.8-flash",
        "grok:grok-4.6": "xai:grok-4.6",
        "models/gemini-2.5-flash": "google:gemini-2.5-flash",
        "google:models/gemini-2.5-flash": "google:gemini-2.5-flash",
        "Qwen3-8B": "vllm:Qwen/Qwen3-8B",
        "hf:qwen/qwen3-8b": "huggingface:Qwen/Qwen3-8B",
        "gpt-4o-2024-05-13": "openai:gpt-4o-2024-05-13",
        "Claude-Haiku-4-5-20251001": "anthropic:claude-haiku-4-5-20251001",
        "openai/gpt-4o": "openai:gpt-4o",
        " OpenAI/GPT-4o-2024-11-20": "openai:gpt-4o-2024-11-20",
        "claude/claude-opus-5-5": "anthropic:claude-opus-5-5",
        "gemini/gemini-3.8-flash": "google:gemini-3.8-flash",
        "xai/grok-4.6": "xai:grok-4.6",
    }.items(),
)
def test_names_are_read_as_typed(typed: str, id_: str) -> None:
    assert CATALOG.find(typed).id == id_


@for_each([spec for spec in SPECS if not CATALOG.providers[spec.provider].open_weights])
def test_slash_means_the_same_for_hosted_models(spec: ModelSpec) -> None:
    assert CATALOG.find(f"{spec.provider}/{spec.name}") is spec
    assert CATALOG.find(f"{spec.provider}/{spec.name}", spec.provider) is spec


@pytest.mark.parametrize("provider", ["huggingface", "vllm"])
def test_slash_stays_in_names_of_other_providers(provider: str) -> None:
    assert CATALOG.find("openai/gpt-4o", provider).name == "openai/gpt-4o"
    assert CATALOG.find(f"{provider}:openai/gpt-4o").name == "openai/gpt-4o"


@given(st.sampled_from(SPECS), st.data(), st.sampled_from(["", " ", "\t", "\n"]))
def test_models_are_found_in_any_case(spec: ModelSpec, data: st.DataObject, space: str) -> None:
    upper = data.draw(st.lists(st.booleans(), min_size=len(spec.id), max_size=len(spec.id)))
    typed = "".join(char.upper() if up else char for char, up in zip(spec.id, upper, strict=True))
    found = CATALOG.find(f"{space}{typed}{space}")
    # A user's own server can have case-sensitive names, so they are sent as typed. The known facts still apply.
    same = replace(found, id=spec.id, name=spec.name, label=spec.label) if spec.provider == "vllm" else found
    assert same == spec


@given(st.sampled_from(SPECS))
def test_ids_are_stable(spec: ModelSpec) -> None:
    assert CATALOG.find(spec.id) is spec
    assert CATALOG.find(spec.id, spec.provider) is spec


@pytest.mark.parametrize("chosen", ["fastest", "cheapest", "novita"])
def test_router_choice_is_sent_but_ignored_for_facts(chosen: str) -> None:
    name = f"Qwen/Qwen3-VL-8B-Instruct:{chosen}"
    found = CATALOG.find(f"huggingface:{name}")
    assert found == CATALOG.find(name, "hf")
    plain = CATALOG.find("huggingface:Qwen/Qwen3-VL-8B-Instruct")
    assert found == replace(plain, id=f"huggingface:{name}", name=name, label=found.label, menu=False)
    assert CATALOG.find(f"hf:somebody/Unheard-VL:{chosen}").name == f"somebody/Unheard-VL:{chosen}"


@pytest.mark.parametrize(
    ("snapshot", "of"),
    [
        ("gpt-4o-2024-11-20", "gpt-4o"),
        ("claude-opus-4-5-20251101", "claude-opus-4-5"),
        ("claude-3-5-haiku-latest", "claude-3-5-haiku"),
        ("gpt-audio-2025-08-28", "gpt-audio"),
    ],
)
def test_snapshot_has_facts_of_its_model(snapshot: str, of: str) -> None:
    found, known = CATALOG.find(snapshot), CATALOG.find(of)
    assert found.name == snapshot
    assert found == replace(known, id=found.id, name=snapshot, label=snapshot)


def test_open_weights_are_equal_everywhere() -> None:
    here = CATALOG.find("vllm:Qwen/Qwen3-VL-4B-Thinking")
    assert here.image
    assert here.always_reasons
    for server in ("huggingface", "llama.cpp"):
        there = CATALOG.find("Qwen/Qwen3-VL-4B-Thinking", server)
        prefill = server == "llama.cpp"  # it depends on the server alone
        expected = replace(here, id=there.id, provider=server, source=there.source, prefill=prefill, assumed=True)
        expected = replace(expected, video=bool(CATALOG.providers[server].video_types))
        assert there == expected
        assert there.id == f"{server}:{here.name}" not in CATALOG.models


def test_price_holds_for_its_provider_only(tmp_path: Path) -> None:
    open_ = PROVIDER.replace("[providers.one]", "[providers.{0}]\nopen_weights = true")
    catalog = read(tmp_path, open_.format("one") + open_.format("two") + MODEL + "price = { input = 1, output = 2 }\n")
    assert catalog.find("one:m").price
    assert catalog.find("two:m").price is None


def test_own_server_gets_name_as_typed() -> None:
    found = CATALOG.find("vllm:qwen3-8b")
    assert (found.id, found.name) == ("vllm:qwen3-8b", "qwen3-8b")
    assert found.licence == CATALOG.find("Qwen/Qwen3-8B").licence != ""


def test_provider_without_audio_has_no_audio_model() -> None:
    for name in ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "somebody/Other-Omni-7B"):
        assert CATALOG.find(name, "vllm").audio
        there = CATALOG.find(name, "huggingface")
        assert (there.audio, there.image) == (False, True)


@pytest.mark.parametrize("provider", CATALOG.providers)
def test_unknown_name_with_provider_is_accepted(provider: str) -> None:
    found = CATALOG.find(f"{provider}:Made-Up-9")
    assert (found.id, found.name, found.provider) == (f"{provider}:Made-Up-9", "Made-Up-9", provider)
    assert found.dialect == CATALOG.providers[provider].dialect
    assert (found.menu, found.price, found.advice(TODAY)) == (False, None, "")
    assert 0 < found.usual_output_tokens <= found.max_output_tokens <= found.context_tokens


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("gpt-4p", ["'gpt-4p'", "Perhaps it is gpt-4", "openai:gpt-4p", "anthropic", "llama.cpp"]),
        ("Claud-Sonnet-5-5", ["Perhaps it is claude-sonnet-5-5"]),
        ("Qwen/Qwen3-VL-8B-Instruct:fastest", ["huggingface:Qwen/Qwen3-VL-8B-Instruct:fastest"]),
        ("nobody:model", ["'nobody:model'", "openai:", "Providers: openai"]),
        ("xyzzy", ["'xyzzy'", "openai:xyzzy"]),
        ("", ["''", "openai:name"]),
        ("openai: ", ["Which model of OpenAI"]),
        ("openai/gpt-oss-999b", ["'openai/gpt-oss-999b'", "huggingface:openai/gpt-oss-999b"]),
        ("google/gemma-3-999b-it", ["huggingface:google/gemma-3-999b-it"]),
        ("vllm/my-model", ["'vllm/my-model'"]),
    ],
)
def test_unknown_bare_name_explains_naming(typed: str, said: list[str]) -> None:
    with pytest.raises(UnknownModel) as refused:
        CATALOG.find(typed)
    assert [words for words in said if words not in str(refused.value)] == []


def test_far_name_gets_no_suggestion() -> None:
    with pytest.raises(UnknownModel) as refused:
        CATALOG.find("xyzzy")
    assert "Perhaps" not in str(refused.value)


def test_unknown_provider_lists_the_known() -> None:
    with pytest.raises(UnknownModel, match=r"'acme'.*openai, anthropic"):
        CATALOG.find("model", "acme")


@given(st.text(max_size=300), st.none() | st.sampled_from(list(CATALOG.providers)))
def test_any_name_is_found_or_explained(typed: str, provider: str | None) -> None:
    try:
        found = CATALOG.find(typed, provider)
    except UnknownModel as refused:
        assert len(str(refused)) < 700  # noqa: PT017 - either outcome is right
        assert "\n" not in str(refused)  # noqa: PT017
    else:
        assert found.provider in CATALOG.providers
        assert found.id.startswith(f"{found.provider}:")


# --- the end of a model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    {
        "gpt-6-luna": "",
        "o4-mini": "o4-mini was shut down on 2026-10-23. gpt-6-luna replaces it. It can still be tried.",
        "gpt-4o": "gpt-4o will be shut down on 2027-01-14. gpt-6.1-terra replaces it. It can still be tried.",
        "grok-2": "grok-2 was shut down. grok-4.3 replaces it. It can still be tried.",
        "grok-2-image-1212": "grok-2-image-1212 was shut down. It can still be tried.",
    }.items(),
)
def test_advice_is_rendered(name: str, sentence: str) -> None:
    assert CATALOG.find(name).advice(TODAY) == sentence


@for_each([spec for spec in SPECS if spec.retired_on])
def test_advice_changes_tense_on_the_day(spec: ModelSpec) -> None:
    assert spec.retired_on is not None
    assert spec.advice(spec.retired_on - timedelta(days=1)).startswith(f"{spec.label} will be shut down on ")
    assert spec.advice(spec.retired_on).startswith(f"{spec.label} was shut down on ")


# --- laws of the table ----------------------------------------------------------------------------------------------


@for_each(SPECS)
def test_entry_is_consistent(spec: ModelSpec) -> None:
    provider = CATALOG.providers[spec.provider]
    assert 0 < spec.usual_output_tokens <= spec.max_output_tokens <= spec.context_tokens
    assert spec.id == f"{spec.provider}:{spec.name}"
    assert spec.reasoning or not spec.always_reasons
    assert spec.audio or not spec.needs_audio
    assert provider.image_types or not spec.image
    assert provider.audio_types or not spec.audio
    assert provider.video_types or not spec.video
    assert not (spec.menu and spec.advice(TODAY))
    assert spec.price is None or 0 <= (spec.price.cached or 0) <= spec.price.input <= spec.price.output


@for_each([spec for spec in SPECS if spec.replaced_by])
def test_replacement_is_a_current_model(spec: ModelSpec) -> None:
    seen = [spec]
    while seen[-1].replaced_by:
        seen.append(CATALOG.models[f"{spec.provider}:{seen[-1].replaced_by}"])
        assert len(seen) <= len(SPECS), f"{spec.name} leads around in a circle"
    assert not seen[-1].advice(TODAY)
    assert seen[-1].audio or not spec.needs_audio


def test_only_ending_models_have_replacements() -> None:
    assert not [spec.id for spec in SPECS if spec.replaced_by and not spec.advice(TODAY)]
    assert [spec.name for spec in SPECS if spec.advice(TODAY) and not spec.replaced_by] == ["grok-2-image-1212"]


def test_bare_name_means_one_provider() -> None:
    """Several providers serve open weights, the user's own server first; any other model has one provider."""
    hosted = [spec.name.casefold() for spec in SPECS if not CATALOG.providers[spec.provider].open_weights]
    assert len(set(hosted)) == len(hosted)


@pytest.mark.parametrize("provider", CATALOG.providers.values(), ids=CATALOG.providers)
def test_provider_is_consistent(provider: Any) -> None:
    own = ("vllm", "llama.cpp", "ollama", "lmstudio", "sglang", "azure")
    assert bool(provider.keys_at) == bool(provider.base_url) == (provider.id not in own)
    assert bool(provider.port) == (provider.id in ("ollama", "lmstudio", "sglang"))
    assert provider.key_names or not provider.base_url
    assert all(kind.startswith("image/") for kind in provider.image_types)
    assert all(kind.startswith("audio/") for kind in provider.audio_types)
    assert set(provider.video_types) <= {"video/mp4", "video/webm"}, "what `agent.files.videos` knows"
    assert provider.max_video_bytes or not provider.video_types
    assert {"image/png", "image/jpeg"} <= set(provider.image_types)
    assert not (provider.max_media_bytes and provider.max_image_bytes > provider.max_media_bytes)
    assert [CATALOG.provider(name) for name in (provider.id, *provider.aliases)] == [provider] * (
        1 + len(provider.aliases)
    )


def test_media_limits_match_vendors() -> None:
    assert CATALOG.providers["xai"].image_types == ("image/png", "image/jpeg")
    assert CATALOG.providers["xai"].max_image_bytes == 20 * 2**20
    hearing = ["openai", "google", "vllm", "llama.cpp", "sglang", "openrouter"]
    assert [id_ for id_, one in CATALOG.providers.items() if one.audio_types] == hearing
    watching = ["google", "vllm", "sglang", "openrouter"]
    assert [id_ for id_, one in CATALOG.providers.items() if one.video_types] == watching
    assert CATALOG.providers["openai"].audio_types == ("audio/wav", "audio/mpeg")
    assert CATALOG.providers["google"].max_audio_seconds == 9.5 * 3600
    assert (CATALOG.providers["anthropic"].max_images, CATALOG.providers["anthropic"].max_image_side) == (100, 8000)


# --- agreement with the libraries -----------------------------------------------------------------------------------


@for_each(HOSTED)
def test_reasoning_matches_library(spec: ModelSpec) -> None:
    profile = PROFILES[spec.provider](spec.name)
    if spec.name in NO_EFFORT:
        assert spec.always_reasons
        assert not profile["supports_thinking"]
        return
    assert profile["supports_thinking"] or not spec.reasoning
    assert profile.get("thinking_always_enabled", False) == spec.always_reasons
    if spec.provider != "anthropic":  # the library says that every Claude thinks, even before 3.7
        assert profile["supports_thinking"] == spec.reasoning


@for_each([spec for spec in HOSTED if spec.provider in ("openai", "anthropic")])
def test_temperature_is_offered_where_accepted(spec: ModelSpec) -> None:
    profile = PROFILES[spec.provider](spec.name)
    if spec.provider == "anthropic":
        assert spec.temperature is not profile["anthropic_disallows_sampling_settings"]
    else:
        assert spec.temperature is not profile["supports_thinking"]


@for_each([spec for spec in HOSTED if spec.provider == "anthropic"])
def test_claude_output_limit_matches_library(spec: ModelSpec) -> None:
    known = anthropic_model_profile(spec.name).get("anthropic_max_output_tokens")
    assert spec.max_output_tokens == (known or spec.max_output_tokens)


def test_claude_dates_match_sdk() -> None:
    from anthropic.resources.messages.messages import DEPRECATED_MODELS  # here, because it takes a second

    for spec in HOSTED:
        if said := DEPRECATED_MODELS.get(spec.name):
            day = spec.retired_on
            assert day is not None, spec.name
            assert said == f"{day:%B} {day.day}{_th(day.day)}, {day.year}"


def _th(day: int) -> str:
    return {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}.get(day, "th")


PRICED = {"openai": "openai", "google": "google", "anthropic": "anthropic", "xai": "x-ai"}


@for_each([spec for spec in HOSTED if spec.price])
def test_prices_match_data(spec: ModelSpec) -> None:
    assert spec.price is not None
    sold = next(one for one in priced if one.id == PRICED[spec.provider]).find_model(spec.name)
    assert sold is not None
    now: ModelPrice = sold.get_prices(_noon())
    assert (spec.price.input, spec.price.output) == (_base(now.input_mtok), _base(now.output_mtok))
    assert spec.price.cached == _base(now.cache_read_mtok)
    assert spec.price.audio == _base(now.input_audio_mtok)
    tiers = now.input_mtok.tiers if isinstance(now.input_mtok, TieredPrices) else []
    assert spec.price.up_to == (tiers[0].start if tiers else 0)
    assert sold.context_window is None or spec.context_tokens <= sold.context_window


def _base(price: Decimal | TieredPrices | None) -> float | None:
    base = price.base if isinstance(price, TieredPrices) else price
    return None if base is None else float(base)


def _noon() -> datetime:
    return datetime(TODAY.year, TODAY.month, TODAY.day, 12, tzinfo=UTC)


@for_each([spec for spec in SPECS if CATALOG.providers[spec.provider].open_weights])
def test_table_matches_names_of_open_weights(spec: ModelSpec) -> None:
    told = guess(spec.name, spec.provider)
    for fact in ("image", "audio", "speaks", "reasoning", "always_reasons", "tools"):
        assert getattr(spec, fact) == getattr(told, fact), fact
    assert spec.video == (told.video and bool(CATALOG.providers[spec.provider].video_types))


# --- a table that is wrong ------------------------------------------------------------------------------------------

PROVIDER = '[providers.one]\nlabel = "One"\ndialect = "chat"\n'
MODEL = '[[models]]\nprovider = "one"\nnames = ["m"]\n'
GOOD = PROVIDER + MODEL

WRONG = {
    "not TOML": ("models = [", "line 1: not valid TOML"),
    "not text": (b"\xff", "cannot be read"),
    "no models": (PROVIDER, "models"),
    "a table too many": (GOOD + "[[model]]\n", "line 7: unknown key 'model'; perhaps 'models' is meant"),
    "a field of a provider": (f'{PROVIDER}colour = "red"\n{MODEL}', "line 4: unknown key 'providers.one.colour'"),
    "a field of a model": (GOOD + "pictures = true\n", "line 7: model 'm': unknown key 'pictures'"),
    "a field of a price": (GOOD + "price = { input = 1, output = 2, cashed = 3 }\n", "unknown key 'price.cashed'"),
    "a number in quotes": (GOOD + 'context_tokens = "8000"\n', "context_tokens must be a whole number, not '8000'"),
    "a truth in quotes": (GOOD + 'image = "yes"\n', "line 7: model 'm': image must be true or false, not 'yes'"),
    "no day": (GOOD + 'retired_on = "soon"\n', "line 7: model 'm': retired_on must be a date, not 'soon'"),
    "an unknown dialect": (GOOD + 'dialect = "morse"\n', "line 7: model 'm': dialect must be", "responses", "'morse'"),
    "no label": ('[providers.one]\ndialect = "chat"\n' + MODEL, "line 1: providers.one.label is missing"),
    "two entries of one name": (GOOD + MODEL, "model 'm'", "two entries"),
    "one name twice": (PROVIDER + MODEL.replace('["m"]', '["m", "m"]'), "model 'm'", "two entries"),
    "an unknown provider": (GOOD + MODEL.replace("one", "two"), "['m']", "provider must be one of one"),
    "no provider": (GOOD + '[[models]]\nnames = ["n"]\n', "['n']", "provider must be one of one"),
    "no names": (GOOD + '[[models]]\nprovider = "one"\n', "line 7: models.names must be a list"),
    "replaced by nothing": (GOOD + 'retired = true\nreplaced_by = "n"\n', "line 8: model 'm': replaced_by 'n'"),
    "gone both ways": (GOOD + "retired = true\nretired_on = 2026-01-01\n", "model 'm'", "retired_on is not known"),
    "an answer longer than the context": (GOOD + "context_tokens = 2000\n", "model 'm'", "max_output_tokens"),
    "no answer at all": (GOOD + "usual_output_tokens = 0\n", "model 'm'", "usual_output_tokens"),
    "wrong assumptions": (f"{PROVIDER}assumed = {{ sight = true }}\n{MODEL}", "line 4: providers.one.assumed: unknown"),
}


def read(folder: Path, text: str | bytes) -> Catalog:
    path = folder / "table.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_catalog(path)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_bad_table_names_its_entry(tmp_path: Path, wrong: tuple[Any, ...]) -> None:
    text, *said = wrong
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert [words for words in ["table.toml", *said] if words not in str(refused.value)] == []


def test_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
        load_catalog(tmp_path / "none.toml")


def test_valid_table_is_read(tmp_path: Path) -> None:
    catalog = read(
        tmp_path, PROVIDER + "assumed = { image = true, context_tokens = 9000 }\n" + MODEL + "image = false\n"
    )
    assert catalog.find("m") == ModelSpec(
        id="one:m", name="m", label="m", provider="one", source="One", context_tokens=9000
    )
    assert catalog.find("one:n").image


# --- the table of docs/models.md --------------------------------------------------------------------------------------


def test_table_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, table(CATALOG)) == page, "run `make docs`"


def test_table_follows_models(tmp_path: Path) -> None:
    rows = {row.split("|")[1].strip(" `:"): row for row in table(CATALOG).splitlines()[2:]}
    assert list(rows) == list(CATALOG.providers)
    for id_, row in rows.items():
        menu = [f"`{spec.name}`" for spec in CATALOG.menu() if spec.provider == id_]
        assert [name for name in [*menu, *CATALOG.providers[id_].key_names] if name not in row] == []
    text = TABLE.read_text(encoding="utf-8")
    blind = text.replace('label = "Grok 4.6"\n', 'label = "Grok 4.6"\nimage = false\n')
    assert "all but `grok-4.6`" in table(read(tmp_path, blind))


@pytest.mark.parametrize("page", ["nothing", BEGIN, END, f"{END}\n{BEGIN}"], ids=["none", "begin", "end", "turned"])
def test_page_without_markers_is_untouched(page: str) -> None:
    with pytest.raises(ConfigError, match=r"docs/models\.md needs"):
        written(page, "| x |")


def test_text_around_table_stays() -> None:
    once = written(f"before\n{BEGIN}\nold\n{END}\nafter\n", "| new |")
    assert once == f"before\n{BEGIN}\n\n| new |\n\n{END}\nafter\n"
    assert written(once, "| new |") == once


@pytest.mark.parametrize("name", ["no-such-model-at-all", "nobody:model", "openai:", "a/b:c"])
def test_unknown_model_is_translated(name: str) -> None:
    with pytest.raises(UnknownModel) as refused:
        CATALOG.find(name)
    assert Translator("de")(refused.value.text) not in ("", str(refused.value))


@pytest.mark.parametrize("name", ["a" * 201, "a:" * 20_000, "/" * 40_000, "openai:" + "b" * 40_000])
def test_long_model_name_is_refused_at_once(name: str) -> None:
    said = f"The name of a model has at most 200 characters; this one has {len(name):,}."
    for make in (
        lambda: load_catalog().find(name),
        lambda: load_catalog().find(name, "openai"),
        lambda: Agent(name),
        lambda: guess(name, "vllm"),
    ):
        start = time.thread_time()
        with pytest.raises(UnknownModel) as raised:
            make()
        assert time.thread_time() - start < 1
        assert str(raised.value) == said
    assert load_catalog().find("openai:" + "b" * 190).name == "b" * 190
