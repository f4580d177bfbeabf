"""Learns from a server's refusals which abilities it lacks: tools, pictures, schemas."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from time import monotonic
from typing import Literal

from pydantic_ai.exceptions import ModelAPIError

from agent.i18n.text import N_
from agent.models.catalog import ModelSpec
from agent.providers.errors import refusal_words

Ability = Literal["tools", "image", "video", "schema", "switch"]
"""An ability that a request can use and a server can refuse. `switch` is the reasoning switch of a chat template."""
_REFUSING_STATUSES = (400, 404, 422, 500, 501)
_NAMES: Mapping[Ability, re.Pattern[str]] = {
    "switch": re.compile(r"chat_template_kwargs|enable_thinking", re.IGNORECASE),
    "schema": re.compile(r"response[_. ]?formats?|json[_ ]schema|structured[_ ]outputs?|grammar", re.IGNORECASE),
    "video": re.compile(r"\bvideos?\b|video_url", re.IGNORECASE),
    "image": re.compile(
        r"\bimages?\b|image_url|\bvision\b|multi-?modal|mmproj|\bcontent\b.{0,40}\bstring\b|\bonly text\b",
        re.IGNORECASE,
    ),
    "tools": re.compile(r"\btools?\b|tool_c|function[_ -]?call", re.IGNORECASE),
}
"""What servers call the abilities, the most specific one first."""
_REFUSES = re.compile(
    r"not (?:\w{1,12} )?(?:support|available|enabled|allow|permit|implement|accept|recogni|have)"
    r"|not (?:capable|a (?:multi|vision))"
    r"|n't (?:\w{1,12} )?(?:support|available|enabled|allow|accept)|unsupported|unavailable|no endpoints|unknown"
    r"|unrecogni|unexpected|cannot|can't|requires?\b|disabled|missing|only|extra inputs|forbid|must be a string"
    r"|valid string|expected a string|at most 0|invalid parameter|lacks?\b|no (?:tool|vision|image)",
    re.IGNORECASE,
)
_ONE_MEDIUM = re.compile(
    r"(?:image|video)[_ ](?:too|parse|size|format)|too (?:large|big|many|long)|larger|exceed|formats?\b|decod|download"
    r"|identify|safety|policy|prohibit|violat|moderat|temporar|overload|try again|your (?:plan|account|tier)|fetch"
    r"|corrupt|invalid[_ ](?:image|video)|process (?:image|video)|resolution|dimension|base64|media.?type|mime"
    r"|at most [1-9]",
    re.IGNORECASE,
)
_ONE_ITEM: Mapping[Ability, re.Pattern[str]] = {
    "image": _ONE_MEDIUM,
    "video": _ONE_MEDIUM,
    "tools": re.compile(
        r"tool_call_id|role .?tool|\btools?[.\[]{1,2}\d|schema|\.parameters|at most [1-9]|too many|tool names?\b"
        r"|parsing|to parse|parse error|safety|policy|temporar|overload|try again|your (?:plan|account|tier)",
        re.IGNORECASE,
    ),
}
"""Faults of one picture, video or tool: others would be taken. Any fault of a schema or a switch is a refusal of it."""
_NO_MODEL = re.compile(r"model\b.{0,80}\b(?:not exist|not found)|model_not_|(?:unknown|invalid) model", re.IGNORECASE)


def refused_ability(error: BaseException | None, used: Collection[Ability]) -> Ability | None:
    """Return the ability, of those that a request has `used`, that the server refused, or None.

    Servers have no codes for this, so their words decide.
    """
    status = getattr(error, "status_code", None)
    is_in_stream = getattr(error, "in_stream", False)
    if not isinstance(error, ModelAPIError) or (status not in _REFUSING_STATUSES and not is_in_stream):
        return None
    text = refusal_words(error)
    if _NO_MODEL.search(text):
        return None
    for ability, name in _NAMES.items():
        if ability not in used or not name.search(text):
            continue
        one_item = _ONE_ITEM.get(ability)
        if one_item is None or (_REFUSES.search(text) and not one_item.search(text)):
            return ability
    return None


# --- the memory of this process -------------------------------------------------------------------------------------

MOST_SERVERS = 1000
REFUSED_SECONDS = 3600.0
"""Then a server is asked again, because it can have been updated, or its words can have meant something else."""
_refused: dict[tuple[str, str], tuple[float, frozenset[Ability]]] = {}
"""When the servers of this process last refused something, and all that they refused, by address and model."""
SENTENCES: dict[Ability, str] = {
    "tools": N_("The server takes no tools for {model}, so it is asked without them."),
    "schema": N_("The server takes no JSON schema for {model}, so nothing binds its answers."),
    "image": N_("The server takes no pictures for {model}, so they are left out."),
    "video": N_("The server takes no videos for {model}, so they are left out."),
    "switch": N_("The server has no switch for the reasoning of {model}."),
}
"""The sentences for people about what was refused."""


def remember(spec: ModelSpec, base_url: str, ability: Ability) -> None:
    """Remember that this server refused the ability for this model."""
    server, known = (base_url, spec.name), refused_abilities(spec, base_url)
    while len(_refused) >= MOST_SERVERS and server not in _refused:
        del _refused[next(iter(_refused))]
    _refused[server] = monotonic(), known.union((ability,))


_chat_only: set[str] = set()
"""The addresses without the Responses API."""
CHAT_ONLY = N_("The server does not know the Responses API, so it is asked over Chat Completions.")


def remember_chat_only(base_url: str) -> None:
    """Remember that this server does not know the Responses API."""
    if len(_chat_only) < MOST_SERVERS:
        _chat_only.add(base_url)


def speaks_only_chat(base_url: str) -> bool:
    """Return True if this server turned out not to know the Responses API."""
    return base_url in _chat_only


def refused_abilities(spec: ModelSpec, base_url: str) -> frozenset[Ability]:
    """Return what the server has refused for this model lately."""
    at, refused = _refused.get((base_url, spec.name), (0.0, frozenset[Ability]()))
    return refused if refused and monotonic() - at < REFUSED_SECONDS else frozenset()


def without_refused(spec: ModelSpec, base_url: str) -> ModelSpec:
    """Return the model without what its server has refused lately."""
    return without(spec, refused_abilities(spec, base_url))


def without(spec: ModelSpec, refused: Collection[Ability]) -> ModelSpec:
    """Return the model without these abilities."""
    if not refused:
        return spec
    return replace(
        spec,
        tools="none" if "tools" in refused else spec.tools,
        schemas=spec.schemas and "schema" not in refused,
        image=spec.image and "image" not in refused,
        video=spec.video and "video" not in refused,
    )
