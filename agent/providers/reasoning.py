"""Reasoning efforts: their names, the nearest one that a model accepts, and the notes shown to people."""

from collections.abc import Collection
from typing import Literal, TypeGuard, get_args

from agent.models.catalog import ModelSpec

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""From least to most, in the words of the providers. Each provider has some of them; see `nearest`."""

Reasoning = bool | Effort
"""On (the provider decides how much), off, or an effort. "none" means off."""

_LADDER: tuple[Effort, ...] = get_args(Effort)


def is_reasoning(value: object) -> TypeGuard[Reasoning]:
    """Return True if this is a bool or a known effort. 0 and 1 do not count, although they equal False and True."""
    return isinstance(value, bool) or (isinstance(value, str) and value in _LADDER)


def nearest(asked: Effort, accepted: Collection[object]) -> Effort | None:
    """Return the accepted effort that was asked for, else the next higher one, else the highest. None if there is none.

    A request for any effort never gets "none".
    """
    some = [rung for rung, effort in enumerate(_LADDER) if effort in accepted and effort != "none"]
    higher = [rung for rung in some if rung >= _LADDER.index(asked)]
    return _LADDER[higher[0] if higher else some[-1]] if some else None


def least(accepted: Collection[object]) -> Effort | None:
    """Return the least of the accepted efforts, which can be "none"."""
    return next((_LADDER[rung] for rung, effort in enumerate(_LADDER) if effort in accepted), None)


def is_off(asked: Reasoning | None) -> bool:
    """Return True if no reasoning is asked for."""
    return asked is False or asked == "none"


def effort_note(asked: Reasoning | None, sent: Reasoning | None, spec: ModelSpec) -> str:
    """Return a sentence if the model cannot reason as asked, and "" if it can."""
    if asked is None:
        return ""
    if not spec.reasoning:
        return "" if is_off(asked) else f"{spec.label} cannot reason; it was asked to answer without."
    if is_off(asked):
        if is_off(sent):
            return ""
        little = f"; it was asked for the least, {sent}" if isinstance(sent, str) else ""
        return f"The reasoning of {spec.label} cannot be turned off here{little}."
    if sent is None:
        return f"The reasoning of {spec.label} cannot be chosen here; it reasons as it comes."
    if isinstance(asked, str) and sent is True:
        return f"{spec.label} has no efforts: its reasoning was turned on, and not {asked}."
    if isinstance(asked, str) and asked != sent:
        return f"{spec.label} has no effort {asked}; it was asked for {sent}."
    return ""
