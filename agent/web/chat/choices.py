"""The settings that visitors choose, and the memory of what each visitor chose."""

import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from agent.errors import InputError
from agent.i18n.text import _
from agent.i18n.translator import ENGLISH
from agent.models.catalog import ModelSpec
from agent.providers.connection import Effort, Reasoning, is_off, is_reasoning, searches
from agent.result import checked_options
from agent.settings import OWN_SEARCH, Settings
from agent.web.chat.visitor import Visitor

MAX_PROMPT_CHARACTERS = 20_000
"""The most characters of a system prompt."""

MOST_TOKENS = 10_000_000
"""The highest limit of an answer in tokens that is kept."""
TEMPERATURE = 0.7
"""The temperature for a model that states none."""
PAGE_OPTIONS: Mapping[str, type] = {"system_message": str, "tools": bool, "web": bool, "extract_text": bool}
"""The options of this page that a program can set, with their types."""
RUN_OPTIONS = ("reasoning", "temperature", "max_tokens")
"""The options of a run that a program can set."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The settings of a visitor on the page. `picked` is True if the visitor chose the model.

    `language` is that of the default system prompt.

    `effort` is how much to reason while reasoning is on; None: as much as the provider decides.
    `max_tokens` is the visitor's own limit of an answer, or None. `system_message` is None for the default and "" for
    no system prompt. With `extract_text`, text in images and speech in audio are extracted on this machine for a model
    that cannot see or hear. With `web`, the model can search the web if that is possible here (`can_search`).
    """

    model: str = ""
    picked: bool = False
    system_message: str | None = None
    reasoning: Reasoning = True
    effort: Effort | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: bool = False
    web: bool = False
    extract_text: bool = False
    language: str = ENGLISH.language

    @property
    def wanted_reasoning(self) -> Reasoning:
        """The reasoning that a model is asked for: the effort, or on or off."""
        return self.effort if self.reasoning is True and self.effort is not None else self.reasoning

    def check(self) -> None:
        """Raise `InputError` if the system prompt is too long."""
        count = len(self.system_message or "")
        if count > MAX_PROMPT_CHARACTERS:
            raise InputError(
                _(
                    "The system prompt has {count:,} characters; {most:,} is the most.",
                    count=count,
                    most=MAX_PROMPT_CHARACTERS,
                )
            )


def can_search(settings: Settings, spec: ModelSpec) -> bool:
    """Return True if this model can use the web on this page."""
    if not settings.search or (settings.public is not None and not settings.public.search):
        return False
    return searches(spec) if settings.search == OWN_SEARCH else spec.tools != "none"


def requested_choices(
    model: object, options: Mapping[str, Any], base: Choices | None = None, *, elsewhere: str
) -> Choices:
    """Return `base` (default: no choices) with the model and the options of a program. Raises `InputError`.

    `elsewhere` is the option that the caller has read itself.

    Nothing is converted, so the text "false" is not accepted as a bool.
    """
    if not isinstance(model, str):
        raise InputError("model must be the id of a model.")
    runs = {name: value for name, value in options.items() if name not in PAGE_OPTIONS}
    if unknown := sorted(runs.keys() - RUN_OPTIONS):
        known = ", ".join([*PAGE_OPTIONS, *RUN_OPTIONS])
        raise InputError(f"unknown options: {', '.join(unknown)[:200]}; known are {known} and {elsewhere}")
    for name, value in options.items():
        if name in PAGE_OPTIONS and not isinstance(value, PAGE_OPTIONS[name]):
            known = "true, false" if PAGE_OPTIONS[name] is bool else "a text"
            raise InputError(
                _("{name} cannot be {value}. Known values: {known}.", name=name, value=repr(value)[:80], known=known)
            )
    checked = checked_options(runs)
    own: dict[str, Any] = {name: value for name, value in options.items() if name in PAGE_OPTIONS}
    own |= {name: getattr(checked, name) for name in RUN_OPTIONS if name in runs}
    if "reasoning" in own:
        own |= {"reasoning": True if checked.reasoning is None else checked.reasoning, "effort": None}
    if checked.max_tokens is not None:
        own["max_tokens"] = min(checked.max_tokens, MOST_TOKENS)
    return replace(base or Choices(), model=model, **own)


def usual_temperature(spec: ModelSpec) -> float:
    """Return the temperature that is used if the visitor has set none."""
    return dict(spec.defaults).get("temperature", TEMPERATURE)


def set_by_visitor(choices: Choices, spec: ModelSpec | None) -> Choices:
    """Return a page's settings without those that show what its model can do and not what the visitor has set."""
    if isinstance(choices.reasoning, str):
        choices = replace(choices, reasoning=True, effort=choices.reasoning)
    if spec is None:
        return choices
    usual = choices.temperature == usual_temperature(spec)
    fixed = not spec.reasoning or spec.always_reasons
    return replace(
        choices,
        temperature=None if usual else choices.temperature,
        reasoning=Choices.reasoning if fixed else choices.reasoning,
    )


def text_of(value: object, most: int | None = None) -> str:
    """Return the first `most` characters of a widget's text, or "" for anything else."""
    return value[:most] if isinstance(value, str) else ""


def effort_of(value: object) -> Effort | None:
    """Return a widget's effort, or None for anything else."""
    known = isinstance(value, str) and is_reasoning(value) and not is_off(value)
    return cast(Effort, value) if known else None


MAX_OWNERS = 1000
MAX_BYTES = 8_000_000
MAX_OWNER_BYTES = 100_000
"""The most bytes of one visitor's choices: the longest system prompt and a model's name, in any script."""


class RememberedSettings:
    """The choices by owner. Forgets the oldest first.

    Guests are never remembered: each guest page has its own owner, so nobody would come back to their choices.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._choices: OrderedDict[str, Choices] = OrderedDict()

    def get(self, owner: str) -> Choices | None:
        """Return what this owner has set, if it is remembered."""
        return self._choices.get(owner)

    def put(self, visitor: Visitor, choices: Choices) -> None:
        """Remember what this visitor has set, unless the visitor is a guest or it is too large."""
        size = _size(choices)
        if visitor.guest or size > MAX_OWNER_BYTES:
            return
        self._drop(visitor.owner)
        self._choices[visitor.owner] = choices
        self._bytes += size
        while self._choices and (len(self._choices) > MAX_OWNERS or self._bytes > self._max_bytes):
            self._drop(next(iter(self._choices)))

    def __len__(self) -> int:
        return len(self._choices)

    def forget(self, owner: str) -> None:
        """Forget what this owner has set."""
        self._drop(owner)

    def _drop(self, owner: str) -> None:
        if (choices := self._choices.pop(owner, None)) is not None:
            self._bytes -= _size(choices)


def _size(choices: Choices) -> int:
    return sum(sys.getsizeof(getattr(choices, one.name)) for one in fields(choices))
