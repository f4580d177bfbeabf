"""The system prompt where the visitor has none of their own: it names the model that speaks and today's date."""

import re
from collections.abc import Iterable
from datetime import date

from agent.models.catalog import ModelSpec
from agent.settings import Settings

MAKERS = {
    r"gpt|o\d|chatgpt": "OpenAI",
    "claude": "Anthropic",
    "gemini|gemma": "Google",
    "grok": "xAI",
    "qwen|qwq": "Alibaba Cloud",
    "(meta-)?llama": "Meta",
    "smollm": "Hugging Face",
    "mistral|mixtral|ministral|magistral|devstral|codestral": "Mistral AI",
    "deepseek": "DeepSeek",
    "phi": "Microsoft",
    "kimi": "Moonshot AI",
    "glm": "Z.ai",
}
"""Who makes a model, by how its name begins. Models often name the maker of others when they are asked."""
DATE = r"\w{1,20}, \d{1,2} \w{1,20} \d{4}"


def default_prompt(settings: Settings, spec: ModelSpec | None) -> str:
    """Return the owner's system prompt with `{model}` and `{date}` filled in, or ours where they have set none."""
    today = date.today()
    day = f"{today:%A}, {today.day} {today:%B %Y}"
    return _filled(settings, spec, day)


def own_prompt(text: str, settings: Settings, specs: Iterable[ModelSpec]) -> str | None:
    """Return what the visitor wrote, None where it is the default for one of these models or for none, of whatever day.

    A page shows the default of the model before for a moment after another one was chosen.
    """
    return None if any(_is_default(text, settings, spec) for spec in (None, *specs)) else text


def _is_default(text: str, settings: Settings, spec: ModelSpec | None) -> bool:
    parts = _filled(settings, spec, "\0").strip().split("\0")
    return re.fullmatch(DATE.join(map(re.escape, parts)), text.strip()) is not None


def _filled(settings: Settings, spec: ModelSpec | None, day: str) -> str:
    model = spec.label if spec is not None else ""
    if settings.system_prompt is None:
        named = f"You are {model}{_made_by(spec)}. " if spec is not None else ""
        return f"{named}You answer on the page {settings.title}. Today is {day}."
    values = {"{model}": model, "{date}": day}
    # In one pass, and not with `format`: other braces are the owner's own.
    return re.sub(r"\{(?:model|date)\}", lambda found: values[found[0]], settings.system_prompt)


def _made_by(spec: ModelSpec) -> str:
    name = spec.name.rpartition("/")[2].lower()
    maker = next((maker for names, maker in MAKERS.items() if re.match(names, name)), "")
    return f", a model made by {maker}" if maker else ""
