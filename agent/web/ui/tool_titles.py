"""Titles of the folds of tool calls. Gradio renders them as Markdown with HTML, and they quote untrusted text."""

import re

from agent.i18n import _
from agent.i18n.translator import Translator


def call_title(name: str, failure: str | None, translator: Translator) -> str:
    """Return a title with the tool's name. `failure` is the reason of a failed call, or "" if it has no result."""
    name = _literal(readable_name(name))
    if failure is None:
        return name
    failed = (
        translator(_("{name} · failed: {why}", name=name, why=_literal(failure)))
        if failure
        else translator(_("{name} · interrupted", name=name))
    )
    return failed_title(failed)


def waiting_title(name: str, translator: Translator) -> str:
    """Return the title of a call that waits for the visitor. `steps.js` never hides it."""
    title = translator(_("{name} · waiting for you", name=_literal(readable_name(name))))
    return f'<span class="waits">{title}</span>'


def readable_name(name: str) -> str:
    """Return the name of a tool as words, for example "Convert units" for `convert_units`."""
    words = " ".join(name.replace("_", " ").split())
    return words[:1].upper() + words[1:]


def failed_title(title: str) -> str:
    """Mark a title as a failure. `page.css` shows it with an icon."""
    return f'<span class="failed">{title}</span>'


def _literal(text: str) -> str:
    """Return the text with each punctuation mark as an entity, so that none of them is markup.

    A backslash does not work: before a bracket it begins a formula.
    """
    return re.sub(r"[!-/:-@\[-`{-~]", lambda found: f"&#{ord(found[0])};", " ".join(text.split()))
