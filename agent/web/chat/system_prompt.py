"""The default system prompt, which names the model and today's date."""

import re
from collections.abc import Iterable, Sequence
from datetime import date
from functools import cache, lru_cache

from agent.i18n.text import LocalizedText, _, joined
from agent.i18n.translator import ENGLISH, LANGUAGES, Translator
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


ARTIFACTS = (
    "The page shows what you write in a fenced code block beside the chat: a web page (html), a picture (svg), "
    "a diagram (mermaid), a document (markdown), a table (csv) or a chart (vega-lite). Write such a thing into one "
    'block, and a short title behind its language, as in ```html title="Clock". A page must be complete in itself, '
    "because it can load nothing from the network. To change it, write the whole block again with the same title."
)
"""The paragraph for large models. Small ones would write such blocks without being asked for them."""
LARGE = 20.0
"""The billions of weights of a model that is large."""
_SIZE = re.compile(r"(?<![a-z\d.])(?:(\d+)x|e)?(\d+(?:\.\d+)?)b(?![a-z\d])", re.IGNORECASE)
_LOCAL = ("llama.cpp", "vllm", "ollama", "lmstudio", "sglang")
"""The providers of any weights, whose models are small unless their names tell otherwise."""


def is_large(spec: ModelSpec) -> bool:
    """Return True for a model whose name has a large size, and for a hosted one without a size in its name."""
    sizes = [float(size) * int(number or 1) for number, size in _SIZE.findall(spec.name)]
    return max(sizes) >= LARGE if sizes else spec.provider not in _LOCAL


def with_artifacts(prompt: str, settings: Settings, spec: ModelSpec) -> str:
    """Return the prompt with what the page can show beside the chat, if the model is to know it."""
    return f"{prompt}\n\n{ARTIFACTS}" if prompt.strip() and settings.artifacts and is_large(spec) else prompt


def default_prompt(settings: Settings, spec: ModelSpec | None, translator: Translator = ENGLISH) -> str:
    """Return the owner's system prompt with `{model}` and `{date}` filled in, or the app's prompt if none is set.

    The app's prompt is in the visitor's language, and the owner's as it is written. A model that needs example
    exchanges, such as SmolLM2, gets it in English, because it reads nothing else.
    """
    if spec is not None and spec.examples:
        translator = ENGLISH
    dates = translator if settings.system_prompt is None else ENGLISH
    return _fill_prompt(settings.system_prompt, settings.title, spec, translator, dates.weekday_and_date(date.today()))


def own_prompt(text: str, settings: Settings, specs: Iterable[ModelSpec]) -> str | None:
    """Return the visitor's text, or None if it equals the default for any of these models or no model.

    That is the default on any date and in any language.

    For a moment after a model was chosen, a page still shows the default prompt of the previous model.
    """
    found = (_default_in(text.strip(), settings, spec) for spec in (None, *specs))
    return None if any(one == len(text.strip()) for one in found) else text


def adapt_prompt(
    text: str, settings: Settings, spec: ModelSpec | None, specs: Iterable[ModelSpec], translator: Translator = ENGLISH
) -> str:
    """Return the visitor's text for the model `spec`.

    If the text begins with the default prompt of one of `specs`, the default prompt of `spec` replaces this beginning.
    So a sentence that was added to the default prompt stays, and the prompt names the right model.
    """
    default, own = default_prompt(settings, spec, translator).strip(), text.strip()
    if spec is None or not default:
        return text
    longest = max((_default_in(own, settings, one) or 0 for one in specs), default=0)
    return default + own[longest:] if longest else text


def _default_in(text: str, settings: Settings, spec: ModelSpec | None) -> int | None:
    """Return the length of the default prompt for this model with which the text begins, on any date. None without."""
    lengths = list[int]()
    for translator in map(Translator, LANGUAGES if settings.system_prompt is None else (ENGLISH.language,)):
        first, *others = _around_dates(settings.system_prompt, settings.title, spec, translator)
        if text.startswith(first):  # most are not, and making a pattern takes long
            pattern = _dates(translator).join(map(re.escape, (first, *others)))
            lengths += [len(one[0]) for one in [re.match(pattern + _NAME_ENDS, text)] if one]
    return max(lengths, default=None)


@cache
def _dates(translator: Translator) -> str:
    """Return a regular expression for any date in this language: words and numbers, with the signs between them."""
    written = re.escape(translator.weekday_and_date(date.today()))
    return re.sub(r"(\d+)|[^\W\d]+", lambda part: r"\d{1,4}" if part[1] else r"\w{1,20}", written)


@lru_cache(4096)
def _around_dates(prompt: str | None, title: str, spec: ModelSpec | None, translator: Translator) -> Sequence[str]:
    """Return the parts of a default prompt between its dates. Kept, because each message asks for all of them."""
    return _fill_prompt(prompt, title, spec, translator, "\0").strip().split("\0")


def _fill_prompt(prompt: str | None, title: str, spec: ModelSpec | None, translator: Translator, day: str) -> str:
    model = spec.label if spec is not None else ""
    if prompt is None:
        page = _("You answer on the page {title}. Today is {day}.", title=title, day=day)
        return translator(joined([_named(spec), page] if spec is not None else [page]))
    values = {"{model}": model, "{date}": day}
    # In one pass and without `format`, because other braces belong to the owner's text.
    return re.sub(r"\{(?:model|date)\}", lambda found: values[found[0]], prompt)


def _named(spec: ModelSpec) -> LocalizedText:
    """Return the sentence that tells a model its name and, if it is known, its maker."""
    name = spec.name.rpartition("/")[2].lower()
    maker = next((maker for names, maker in MAKERS.items() if re.match(names, name)), "")
    if not maker:
        return _("You are {model}.", model=spec.label)
    return _("You are {model}, a model made by {maker}.", model=spec.label, maker=maker)
