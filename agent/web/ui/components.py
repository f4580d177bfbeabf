"""Widget updates for a model, and the examples of an empty chat: pure functions."""

import base64
import html
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import gradio as gr

from agent.files.transcribe import TRANSCRIPTION_MODELS, Kind, Transcriber
from agent.i18n.text import LocalizedText, _, joined
from agent.i18n.translator import ENGLISH, Translator
from agent.models.catalog import ModelSpec, ProviderSpec, load_catalog
from agent.models.weights import Status
from agent.providers.connection import Effort, is_off, nearest
from agent.web.chat.attachments import AttachmentPlan, file_types, media_kinds, merge_refusals, merge_usual
from agent.web.chat.choices import Choices, usual_temperature
from agent.web.chat.model_menu import ModelMenu, shown_name
from agent.web.sending import EXAMPLE_FILES
from agent.web.ui.layout import Widgets
from agent.web.ui.page_sessions import PageSession
from agent.web.ui.page_text import WIDGETS

LOGIN = "/login/huggingface?_target_url=/"
"""Gradio's own route to log in to Hugging Face and return."""

MAX_SUGGESTED_MODELS = 3
"""Models that are suggested beside an attachment that the chosen one cannot take."""

Updates = dict[gr.Component, Any]
"""The return value of a handler: new values or properties by widget. All other widgets stay as they are."""

TOOL_SUPPORT = {
    "native": _("Calculator, clock, unit conversion, questions to you."),
    "none": _("This model, or its server, takes no tools."),
}
"""The remark about the tools of a model, by `ModelSpec.tools`."""
WEB = _("The model searches the web and reads pages when it needs to. What it searches for leaves this server.")
EFFORTS: dict[Effort, LocalizedText] = {
    "minimal": _("Minimal"),
    "low": _("Low"),
    "medium": _("Medium"),
    "high": _("High"),
    "xhigh": _("Very high"),
    "max": _("Maximum"),
}
"""The names of reasoning efforts."""


def no_updates() -> Updates:
    """Return what leaves all widgets as they are. Gradio refuses an empty dictionary."""
    return cast(Updates, gr.skip())


def shown_model(
    id_: str,
    label: str,
    efforts: Sequence[Effort],
    translator: Translator,
    *,
    effort: Effort | None,
    has_others: bool,
) -> dict[str, Any]:
    """Return what page.js shows and needs to know of the chosen model.

    These are its name, its reasoning efforts with their names and the one that was chosen, and whether other models can
    be used. A model with a single effort leaves no choice, so it has none here.
    """
    choices = [("", translator(_("Default"))), *((one, translator(EFFORTS[one])) for one in efforts)]
    return {
        "id": id_,
        "label": label,
        "efforts": choices if len(efforts) > 1 else [],
        "effort": (effort and nearest(effort, efforts)) or effort or "",
        "has_others": has_others,
    }


def status_line(status: Status, translator: Translator) -> str:
    """Return the status line of a model that is loading, with a progress bar if the progress is known."""
    bar = "" if status.done is None else f'<progress max="1" value="{status.done:.3f}"></progress>'
    return f'<p class="{status.phase}" role="status">{html.escape(translator(status.text))} {bar}</p>'


def storage_line(translator: Translator) -> str:
    """Return the line that the store is away."""
    sentence = translator(_("Nothing can be kept at the moment, so no message can be sent. This page tries it again."))
    return f'<p class="failed" role="status">{html.escape(sentence)}</p>'


def offer(better: ModelSpec | None, translator: Translator) -> str:
    """Return the button that offers a better model, or "" if there is none."""
    return (
        _button(translator(_("{model} is ready: switch to it", model=translator(shown_name(better))))) if better else ""
    )


def _button(text: str) -> str:
    return f'<button type="button">{html.escape(text)}</button>'


def settings_for_model(
    spec: ModelSpec, chosen: Choices, translator: Translator, *, transcriber: Transcriber | None, has_web: bool
) -> dict[str, Any]:
    """Return what the settings show for a model, but for the system prompt: the visitor's choices, or usual values.

    `transcriber` extracts what the model cannot take. `has_web`: the model can search the web.
    """
    can_reason, can_call = spec.reasoning, spec.tools != "none"
    always = _("This model always reasons.") if spec.always_reasons else _("This model has no visible reasoning.")
    fixed = spec.always_reasons or not can_reason
    limit = _(
        "At most {count} with this model. Leave it empty for the model's own limit.", count=spec.max_output_tokens
    )
    warmth = usual_temperature(spec)
    return {
        "reasoning": can_reason and (not is_off(chosen.reasoning) or spec.always_reasons),
        "tools": can_call and chosen.tools,
        "web": has_web and chosen.web,
        "extract_text": chosen.extract_text,
        "temperature": warmth if chosen.temperature is None else chosen.temperature,
        "max_tokens": chosen.max_tokens,
        "about": {
            "reasoning": {"fixed": fixed, "info": translator(always) if fixed else ""},
            "tools": {"fixed": not can_call, "info": translator(TOOL_SUPPORT[spec.tools])},
            "web": {"fixed": not has_web, "info": translator(WEB)},
            "extract_text": {"info": extraction_info(spec, transcriber, translator)},
            "temperature": {
                "fixed": not spec.temperature,
                "info": "" if spec.temperature else translator(_("Fixed by this model.")),
                "usual": warmth,
            },
            "max_tokens": {"info": translator(limit), "most": spec.max_output_tokens},
        },
    }


def composer_for_model(
    widgets: Widgets,
    spec: ModelSpec,
    translator: Translator = ENGLISH,
    *,
    transcriber: Transcriber | None = None,
) -> Updates:
    """Return a description of the model, with the types of files that the composer offers.

    Types whose text `transcriber` cannot extract now are not offered, so that nobody records audio in vain.
    `extraction_info` says why.
    """
    extract_text: list[Kind] = [kind for kind in TRANSCRIPTION_MODELS if transcriber and kind not in transcriber.absent]
    facts = (
        translator(shown_name(spec)),
        translator(spec.source),
        translator(_("{licence} licence", licence=spec.licence)) if spec.licence else "",
    )
    about = " · ".join(html.escape(part) for part in facts if part)
    kinds = media_kinds(spec, extract_text=extract_text)
    takes = f'data-takes="{" ".join(kinds)}" data-accept="{",".join(file_types(kinds))}"'
    takes += " data-hears" if spec.audio else ""
    takes += " data-speaks" if spec.speaks else ""
    if spec.video:
        provider = load_catalog().providers[spec.provider]
        takes += f' data-video="{" ".join(provider.video_types)}"'
        takes += f' data-video-bytes="{provider.max_video_bytes}" data-video-seconds="{provider.max_video_seconds}"'
    return {widgets.about: f"<p {takes}>{about}</p>"}


def extraction_info(spec: ModelSpec, transcriber: Transcriber | None, translator: Translator = ENGLISH) -> str:
    """Return what is said below the switch for text extraction, with what `transcriber` cannot extract now.

    What the model takes itself is left out.
    """
    absent = transcriber.absent if transcriber else {}
    unread = [reason for kind, reason in absent.items() if not (spec.image if kind == "image" else spec.audio)]
    return " ".join([translator.template(WIDGETS["extract_text_how"]), *map(translator, unread)])


def render_attachments(
    planned: Sequence[AttachmentPlan], translator: Translator = ENGLISH, missing: Mapping[str, str] | None = None
) -> str:
    """Return how each attachment is handled, in one line for those of which nothing must be known.

    Refused ones have buttons with models that could take them.

    `missing` says what the visitor needs before a model can be used, by the model's id. Such models are offered only
    if no other one could take the file.
    """
    rows: list[str] = []
    missing = missing or {}
    for plan in merge_usual(merge_refusals(planned)):
        text = translator(plan.text)
        is_plain = plan.outcome != "refused" and not text
        if plan.outcome != "refused" and plan.name:
            text = translator(_("{name}: {plan}", name=plan.name, plan=text)) if text else plan.name
        ready = [spec for spec in plan.others if not missing.get(spec.id)]
        offered = (ready or plan.others)[:MAX_SUGGESTED_MODELS]
        others = "".join(_model_button(spec, missing.get(spec.id, "")) for spec in offered)
        kind = plan.outcome.split()[0] + " sr-only" * is_plain  # the chip says all of it
        rows.append(f'<li class="{kind}"><span>{html.escape(text)}</span>{others}</li>')
    return f'<div role="status"><ul>{"".join(rows)}</ul></div>' if rows else ""


def _model_button(spec: ModelSpec, missing: str) -> str:
    label = f"{spec.label} · {missing}" if missing else spec.label
    return f'<button type="button" data-model="{html.escape(spec.id)}">{html.escape(label)}</button>'


def key_panel(
    widgets: Widgets, models: ModelMenu, session: PageSession, spec: ModelSpec | None, problem: str = ""
) -> Updates:
    """Return the key panel: its text, the box for a key, and the button to forget the keys.

    A key goes from the browser to the server and never back. `problem` says why a typed key was not taken.
    """
    provider, translator = models.provider(spec) if spec else None, session.translator
    typed = provider is not None and models.keys.get(session.owner, provider.id) is not None
    missing = spec is not None and models.key_missing(session.owner, spec, session.login)
    paragraphs = [html.escape(translator(spec.advice(date.today())))] if spec else []
    if spec is not None and provider is not None:
        if missing:
            paragraphs += _missing_key(models, spec, provider, translator)
        elif typed:
            about = _(
                "Using your {provider} key. It is deleted shortly after you close this page.", provider=provider.label
            )
            paragraphs.append(translator(about))
        elif models.may_log_in(spec) and session.login:
            about = _("Using your {provider} account. You can log out under Settings.", provider=provider.label)
            paragraphs.append(translator(about))
    text = "".join(f"<p>{one}</p>" for one in paragraphs if one)
    text += f'<p class="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
    return {
        widgets.key_said: gr.HTML(text, visible=bool(text)),
        widgets.key: _key_form(provider, translator) if missing and models.accepts_keys and provider else "",
        widgets.key_forget: _button(translator.template(WIDGETS["forget_keys"])) if typed else "",
        widgets.sign_of_life: gr.Timer(active=models.keys.has_any(session.owner)),
    }


def _key_form(provider: ProviderSpec, translator: Translator) -> str:
    """Return the form for a key. page.js sends what is typed, and empties the box."""
    name = html.escape(translator(_("{provider} API key", provider=provider.label)))
    label = html.escape(translator.template(WIDGETS["key"]))
    box = f'<input type="password" autocomplete="new-password" aria-label="{label}" placeholder="{name}">'
    return f"<form>{box}<button>{html.escape(translator(_('Use this key')))}</button></form>"


def _missing_key(models: ModelMenu, spec: ModelSpec, provider: ProviderSpec, translator: Translator) -> Iterator[str]:
    """Yield the paragraphs on a missing key as HTML: what is missing, and how to get it."""
    needs_key = translator(_("{model} needs an API key from {provider}.", model=spec.label, provider=provider.label))
    needs = f"<b>{html.escape(needs_key)}</b> "
    if not models.accepts_keys:
        yield needs + translator(_("Keys can't be entered on a page that is shared over a link. Choose another model."))
        return
    link = f'<a href="{provider.keys_at}" target="_blank" rel="noopener">{provider.keys_at.split("//")[-1]}</a>'
    get_one = _(
        "Get one at {link} and paste it here. It is kept only in memory, while this page is open.",
        link=link,
    )
    instead = _("Running this server? Set {name}.", name=provider.key_names[0])
    yield needs + translator(get_one if models.own_keys_only else joined([get_one, instead]))
    if models.may_log_in(spec):
        log_in = translator(_("log in with {provider}", provider=provider.label))
        yield translator(_("Or {link} to use your own account.", link=f'<a href="{LOGIN}">{log_in}</a>'))


MAX_EXAMPLES = 4
ICON_PATHS = {  # each in a 24 x 24 box
    "question": "M4 5h16v11H9l-5 4zM9 10h6",
    "riddle": "M9 18h6M10 21h4M8 14a6 6 0 1 1 8 0c-1 1-1 2-1 2H9s0-1-1-2z",
    "code": "M9 7l-5 5 5 5M15 7l5 5-5 5",
    "table": "M4 5h16v14H4zM4 10h16M10 5v14",
    "letter": "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
    "tiny_capital": "M4 5h16v11H9l-5 4zM9 10h6",
    "tiny_list": "M4 6h2M4 12h2M4 18h2M9 6h11M9 12h11M9 18h11",
    "tiny_code": "M9 7l-5 5 5 5M15 7l5 5-5 5",
    "tiny_term": "M9 18h6M10 21h4M8 14a6 6 0 1 1 8 0c-1 1-1 2-1 2H9s0-1-1-2z",
    "document": "M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6",
    "tool": "M6 3h12v18H6zM9 7h6M9 12h1M14 12h1M9 16h1M14 16h1",
    "preview": "M4 5h16v14H4zM4 9h16M7 7h.01M10 7h.01",
    "sound": "M4 10v4h4l5 4V6L8 10zM16 9c2 2 2 4 0 6M18 6c4 4 4 8 0 12",
}
TITLES = {
    "question": _("Ask a quick question"),
    "riddle": _("Think through a riddle"),
    "code": _("Write a little code"),
    "table": _("Draw up a table"),
    "letter": _("Polish a sentence"),
    "tiny_capital": _("Ask for a capital"),
    "tiny_list": _("Get a short list"),
    "tiny_code": _("Write a little code"),
    "tiny_term": _("Explain a term"),
    "picture": _("Read a chart"),
    "sound": _("Listen to a sound"),
    "document": _("Ask about a document"),
    "tool": _("Calculate with a tool"),
    "preview": _("Build a small web page"),
}
TEXTS = {
    "question": _("What is the capital of France? Answer in one word."),
    "riddle": _("A bat and a ball cost 1.10 together. The bat costs 1.00 more than the ball. What does the ball cost?"),
    "code": _("Write a Python function that reverses a string."),
    "table": _("Make a table of three planets and how many moons each has."),
    "letter": _("Say this more politely: Your package is late, wait."),
    # Not translated: the tiny model answered 13 of 16 translations wrongly.
    "tiny_capital": "What is the capital of Japan?",
    "tiny_list": "Name three fruits.",
    "tiny_code": "Write a Python function that adds two numbers.",
    "tiny_term": "What is photosynthesis?",
    "picture": _("Which month had the most rain, and how much?"),
    "sound": _("What do you hear? Do the notes rise or fall?"),
    "document": _("When must it be quiet in this house, and what does a lost key cost?"),
    "tool": _("How much is 1234.56 * 78.9? Use the calculator."),
    "preview": _("Write a web page in one HTML file, with a button that counts its clicks."),
}
NEEDED_TOOL = "calculate"
"""The tool of the example with a tool."""


def examples(spec: ModelSpec | None, translator: Translator, tools: Collection[str] = ()) -> str:
    """Return buttons for the examples, as HTML. The value of a button is its message, and it names its file.

    `tools` are the names of the tools here. The example with a tool has `data-tools`: it lets the model use them.
    """
    buttons = "".join(
        f'<button type="button" class="example" value="{html.escape(translator(TEXTS[name]))}"'
        f"{f' data-file={name}' if name in EXAMPLE_FILES else ''}{' data-tools' if name == 'tool' else ''}>"
        f'<img alt="" src="{html.escape(_example_icon(name))}" />{html.escape(translator(TITLES[name]))}</button>'
        for name in _example_names(spec, tools)
    )
    name = html.escape(translator(_("Examples")))
    return f'<div role="group" aria-label="{name}">{buttons}</div>'


def _example_names(spec: ModelSpec | None, tools: Collection[str]) -> list[str]:
    is_able = spec is not None and spec.tools != "none"
    possible = {
        "picture": spec is not None and spec.image,
        "sound": spec is not None and spec.audio,
        "document": is_able,
        "tool": is_able and NEEDED_TOOL in tools,
        "preview": is_able,
    }
    names = [name for name, is_possible in possible.items() if is_possible]
    if spec is not None and spec.examples:  # a tiny model: only examples that it has been seen to answer correctly
        names += ["tiny_capital", "tiny_list", "tiny_code", "tiny_term"]
    elif spec is not None and spec.tools == "none":
        names += ["question", "letter"]
    else:
        names += ["question", "riddle" if spec is not None and spec.reasoning else "letter", "code", "table"]
    return names[:MAX_EXAMPLES]


def _example_icon(name: str) -> str:
    """Return a data URL, because files in Gradio's cache belong to the visitor who uploaded them."""
    if name == "picture":
        return "data:image/png;base64," + base64.b64encode(Path(EXAMPLE_FILES[name]).read_bytes()).decode()
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' fill='none' stroke='#6d73f0' stroke-width='1.7' "
        f"stroke-linecap='round' stroke-linejoin='round'><path d='{ICON_PATHS[name]}'/></svg>"
    )
    return "data:image/svg+xml," + quote(svg)
