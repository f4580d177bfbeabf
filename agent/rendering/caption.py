"""The caption under an answer: its model, how it ended, and its figures."""

import html
import math
from urllib.parse import quote

from agent.history import Note
from agent.i18n import LocalizedText, _, decimal, ngettext
from agent.i18n.translator import Translator


def caption_of(note: Note, translator: Translator, model: str, model_id: str) -> str:
    """Return the model's name if given, how the turn ended and its figures, in one line. "≈" marks estimates.

    options.js hides the name of the model that the composer shows, by the class that has the model's id.
    """
    parts = list[str]()
    if note.ended == "cancelled":
        parts.append(html.escape(translator(note.detail).rstrip(".。")))
    if note.ended == "length":
        parts.append(translator(_("Reached the length limit")))
    if note.ended == "content_filter":
        withheld = note.detail or _("Withheld by the provider's content filter")
        parts.append(html.escape(translator(withheld).rstrip(".。")))
    if note.left_out:
        parts.append(
            translator(
                ngettext(
                    "{count} earlier message no longer fits and was not sent",
                    "{count} earlier messages no longer fit and were not sent",
                    note.left_out,
                )
            )
        )
    if note.omitted:
        parts.append(html.escape(translator(note.omitted).rstrip(".。")))
    timings = note.timings
    if timings is not None and timings.queued >= 1:
        parts.append(translator(_("{seconds} s in line", seconds=decimal(timings.queued, 0))))
    if timings is not None and timings.first_token is not None:
        about = "≈ " if timings.estimated else ""
        parts.append(translator(_("{seconds} s to first token", seconds=decimal(timings.first_token, 2))))
        parts.append(about + translator(ngettext("{count} token", "{count} tokens", timings.output_tokens)))
        if timings.generating > 0.05 and timings.generated > 1:
            speed = decimal(timings.generated / timings.generating, 0)
            parts.append(about + translator(_("{count} tokens/s", count=speed)))
    if note.cost:
        parts.append(translator(_dollars(note.cost)))
    figures = " · ".join(parts)
    if not model:
        return figures
    name = html.escape(translator(model)) + (" · " if figures else "")
    kind = html.escape(f"model {quote(model_id, safe='!*()')}")
    return f'<span class="{kind}">{name}</span>{figures}'


def _dollars(cost: float) -> LocalizedText:
    """Return the cost with at least two significant figures: $1.20, $0.034, $0.00012."""
    digits = 2 if cost >= 0.1 else 1 - math.floor(math.log10(cost))
    return _("${amount}", amount=decimal(cost, digits))
