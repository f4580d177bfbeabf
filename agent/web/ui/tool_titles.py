"""Titles of the folds of tool calls. Gradio renders them as Markdown with HTML, and they quote untrusted text."""

import re

from agent.i18n import _
from agent.i18n.translator import Translator
from agent.rendering.steps import short_reason
from agent.rendering.tool_titles import tool_title


def call_title(name: str, failure: str | None, translator: Translator) -> str:
    """Return the title of a call. `failure` is the reason of a failed call, or "" if it has no result."""
    name = _title(name, translator)
    if failure is None:
        return name
    failed = (
        translator(_("{name} · failed: {why}", name=name, why=_literal(short_reason(failure, translator))))
        if failure
        else translator(_("{name} · interrupted", name=name))
    )
    return failed_title(failed)


def refused_title(name: str, why: str, translator: Translator) -> str:
    """Return the title of a call that the visitor refused. `why` is the reason that they gave, or ""."""
    name = _title(name, translator)
    if not why:
        return translator(_("{name} · refused", name=name))
    return translator(_("{name} · refused: {why}", name=name, why=_literal(short_reason(why, translator))))


def waiting_title(name: str, translator: Translator) -> str:
    """Return the title of a call that waits for the visitor. `steps.js` never hides it."""
    title = translator(_("{name} · waiting for you", name=_title(name, translator)))
    return f'<span class="waits">{title}</span>'


def failed_title(title: str) -> str:
    """Mark a title as a failure. `page.css` shows it with an icon."""
    return f'<span class="failed">{title}</span>'


def _title(name: str, translator: Translator) -> str:
    return _literal(translator(tool_title(name)))


def _literal(text: str) -> str:
    """Return the text with each punctuation mark as an entity, so that none of them is markup.

    A backslash does not work: before a bracket it begins a formula.
    """
    return re.sub(r"[!-/:-@\[-`{-~]", lambda found: f"&#{ord(found[0])};", " ".join(text.split()))
