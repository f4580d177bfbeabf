"""The default system prompt, which names the model and today's date."""

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
"""The makers of models by the start of the model's name. When asked, models often name other models' makers."""
_NAME_ENDS = r"(?!(?<=\w)(?:[\w-]|\.\w))"
"""No part of a longer name follows: "You are Qwen" is not the beginning of "You are Qwen2.5"."""
DATE = r"\w{1,20}, \d{1,2} \w{1,20} \d{4}"


def default_prompt(settings: Settings, spec: ModelSpec | None) -> str:
    """Return the owner's system prompt with `{model}` and `{date}` filled in, or the app's prompt if none is set."""
    today = date.today()
    day = f"{today:%A}, {today.day} {today:%B %Y}"
    return _fill_prompt(settings, spec, day)


def own_prompt(text: str, settings: Settings, specs: Iterable[ModelSpec]) -> str | None:
    """Return the visitor's text, or None if it equals the default for any of these models or no model, on any date.

    For a moment after a model was chosen, a page still shows the default prompt of the previous model.
    """
    return None if any(_is_default(text, settings, spec) for spec in (None, *specs)) else text


def adapt_prompt(text: str, settings: Settings, spec: ModelSpec | None, specs: Iterable[ModelSpec]) -> str:
    """Return the visitor's text for the model `spec`.

    If the text begins with the default prompt of one of `specs`, the default prompt of `spec` replaces this beginning.
    So a sentence that was added to the default prompt stays, and the prompt names the right model.
    """
    default, own = default_prompt(settings, spec).strip(), text.strip()
    if spec is None or not default:
        return text
    found = (re.match(_pattern(settings, one) + _NAME_ENDS, own) for one in specs)
    longest = max((len(one[0]) for one in found if one is not None), default=0)
    return default + own[longest:] if longest else text


def _is_default(text: str, settings: Settings, spec: ModelSpec | None) -> bool:
    return re.fullmatch(_pattern(settings, spec), text.strip()) is not None


def _pattern(settings: Settings, spec: ModelSpec | None) -> str:
    """Return a regular expression for the default prompt for this model, on any date."""
    parts = _fill_prompt(settings, spec, "\0").strip().split("\0")
    return DATE.join(map(re.escape, parts))


def _fill_prompt(settings: Settings, spec: ModelSpec | None, day: str) -> str:
    model = spec.label if spec is not None else ""
    if settings.system_prompt is None:
        named = f"You are {model}{_made_by(spec)}. " if spec is not None else ""
        return f"{named}You answer on the page {settings.title}. Today is {day}."
    values = {"{model}": model, "{date}": day}
    # In one pass and without `format`, because other braces belong to the owner's text.
    return re.sub(r"\{(?:model|date)\}", lambda found: values[found[0]], settings.system_prompt)


def _made_by(spec: ModelSpec) -> str:
    name = spec.name.rpartition("/")[2].lower()
    maker = next((maker for names, maker in MAKERS.items() if re.match(names, name)), "")
    return f", a model made by {maker}" if maker else ""
