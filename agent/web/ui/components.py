"""Widget updates for a model and a run: pure functions."""

import html
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Literal, cast

import gradio as gr

from agent.files.transcribe import TRANSCRIPTION_MODELS, Kind, Transcriber
from agent.i18n.text import LocalizedText, _, joined
from agent.i18n.translator import ENGLISH, Translator
from agent.models.catalog import ModelSpec, ProviderSpec, load_catalog
from agent.models.weights import Status
from agent.providers.connection import Effort, is_off, nearest
from agent.web.chat.attachments import AttachmentPlan, file_types, media_kinds, merge_refusals, merge_usual
from agent.web.chat.choices import Choices, usual_temperature
from agent.web.chat.model_menu import shown_name
from agent.web.ui.examples import examples
from agent.web.ui.layout import Widgets
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
    efforts: Sequence[Effort] = (),
    translator: Translator = ENGLISH,
    *,
    effort: Effort | None = None,
    has_others: bool = False,
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


def status_line(status: Status, translator: Translator = ENGLISH) -> str:
    """Return the status line of a model that is loading, with a progress bar if the progress is known."""
    bar = "" if status.done is None else f'<progress max="1" value="{status.done:.3f}"></progress>'
    return f'<p class="{status.phase}" role="status">{html.escape(translator(status.text))} {bar}</p>'


def storage_line(translator: Translator = ENGLISH) -> str:
    """Return the line that the store is away."""
    sentence = translator(_("Nothing can be kept at the moment, so no message can be sent. This page tries it again."))
    return f'<p class="failed" role="status">{html.escape(sentence)}</p>'


def offer(better: ModelSpec | None, translator: Translator = ENGLISH) -> str:
    """Return the button that offers a better model, or "" if there is none."""
    return (
        _button(translator(_("{model} is ready: switch to it", model=translator(shown_name(better))))) if better else ""
    )


def _button(text: str) -> str:
    return f'<button type="button">{html.escape(text)}</button>'


def widgets_for_model(
    widgets: Widgets,
    spec: ModelSpec | None,
    chosen: Choices | None = None,
    translator: Translator = ENGLISH,
    *,
    transcriber: Transcriber | None = None,
    tools: Collection[str] = (),
    has_web: bool = False,
) -> Updates:
    """Return the widgets that depend on the model.

    These are the settings, the composer, the examples of the empty chat and the description of the model. They show
    what was `chosen`, or else values that suit the model. `transcriber` extracts what the model cannot take, and
    `tools` are the names of the tools here. `has_web`: the model can search the web.
    """
    empty: Updates = {widgets.composer.examples: examples(spec, translator, tools)}
    if spec is None:
        return empty | {widgets.composer.about: ""}
    shown = settings_for_model(spec, chosen or Choices(), translator, transcriber=transcriber, has_web=has_web)
    return {widgets.settings: shown} | composer_for_model(widgets, spec, translator, transcriber=transcriber) | empty


def settings_for_model(
    spec: ModelSpec,
    chosen: Choices,
    translator: Translator = ENGLISH,
    *,
    transcriber: Transcriber | None = None,
    has_web: bool = False,
) -> dict[str, Any]:
    """Return what the settings show for a model, but for the system prompt. See `Settings`."""
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
    return {widgets.composer.about: f"<p {takes}>{about}</p>"}


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
    widgets: Widgets,
    spec: ModelSpec | None,
    provider: ProviderSpec | None,
    *,
    missing: bool,
    typed: bool,
    taken: bool,
    own: bool = False,
    login: Literal["possible", "done"] | None = None,
    problem: str = "",
    translator: Translator = ENGLISH,
) -> Updates:
    """Return the key panel: its text, the box for a key, and the button to forget the keys.

    A key goes from the browser to the server and never back. `login` is None
    if a login cannot replace a key. With `own`, only a visitor's own key helps, not one that the owner sets. `problem`
    says why a typed key was not taken.
    """
    paragraphs = [html.escape(translator(spec.advice(date.today())))] if spec else []
    if spec is not None and provider is not None and missing:
        paragraphs += _missing_key(spec, provider, taken=taken, own=own, login=login is not None, translator=translator)
    elif provider is not None and typed:
        about = _(
            "Using your {provider} key. It is deleted shortly after you close this page.",
            provider=provider.label,
        )
        paragraphs.append(translator(about))
    elif provider is not None and login == "done":
        about = _(
            "Using your {provider} account. You can log out under Settings.",
            provider=provider.label,
        )
        paragraphs.append(translator(about))
    text = "".join(f"<p>{one}</p>" for one in paragraphs if one)
    text += f'<p class="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
    return {
        widgets.composer.keys.said: gr.HTML(text, visible=bool(text)),
        widgets.composer.keys.key: _key_form(provider, translator) if missing and taken and provider else "",
        widgets.composer.keys.forget: _button(translator.template(WIDGETS["forget_keys"])) if typed else "",
    }


def _key_form(provider: ProviderSpec, translator: Translator) -> str:
    """Return the form for a key. page.js sends what is typed, and empties the box."""
    name = html.escape(translator(_("{provider} API key", provider=provider.label)))
    label = html.escape(translator.template(WIDGETS["key"]))
    box = f'<input type="password" autocomplete="new-password" aria-label="{label}" placeholder="{name}">'
    return f"<form>{box}<button>{html.escape(translator(_('Use this key')))}</button></form>"


def _missing_key(
    spec: ModelSpec, provider: ProviderSpec, *, taken: bool, own: bool, login: bool, translator: Translator
) -> Iterator[str]:
    """Yield the paragraphs on a missing key as HTML: what is missing, and how to get it."""
    needs_key = translator(_("{model} needs an API key from {provider}.", model=spec.label, provider=provider.label))
    needs = f"<b>{html.escape(needs_key)}</b> "
    if not taken:
        yield needs + translator(_("Keys can't be entered on a page that is shared over a link. Choose another model."))
        return
    link = f'<a href="{provider.keys_at}" target="_blank" rel="noopener">{provider.keys_at.split("//")[-1]}</a>'
    get_one = _(
        "Get one at {link} and paste it here. It is kept only in memory, while this page is open.",
        link=link,
    )
    instead = _("Running this server? Set {name}.", name=provider.key_names[0])
    yield needs + translator(get_one if own else joined([get_one, instead]))
    if login:
        log_in = translator(_("log in with {provider}", provider=provider.label))
        yield translator(_("Or {link} to use your own account.", link=f'<a href="{LOGIN}">{log_in}</a>'))
