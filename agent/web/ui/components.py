"""What the widgets show of a model and of a run: pure functions to widget updates."""

import html
from collections.abc import Sequence
from datetime import date
from typing import Any, Literal, cast

import gradio as gr

from agent.i18n.translator import ENGLISH, Translator
from agent.media.transcribe import READERS, Kind, Transcriber
from agent.models.catalog import ModelSpec, ProviderSpec
from agent.models.families import LONGEST_NAME
from agent.providers import Status, is_off
from agent.web.chat.attachments import AttachmentPlan, kinds
from agent.web.chat.run_setup import Choices, limit_of, temperature_of, text_of
from agent.web.ui.examples import examples

TEMPERATURE = 0.7
KEYS = 4
"""Widgets that have to do with keys: what `key_panel` gives, and the timer of its page's signs of life."""
FOR_MODEL = 8 + KEYS
"""Widgets that depend on the chosen model: the system prompt, what `switches` gives, and those."""

LOGIN = "/login/huggingface?_target_url=/"
"""Gradio's own way to the hub and back."""

OTHERS = 3
"""Models that are offered beside an attachment that the chosen one cannot take."""

Given = dict[Any, Any]
"""What Gradio passes where inputs are given as a set: the values by widget."""


def values(given: Given) -> dict[str, Any]:
    """The values by the widgets' names in the page."""
    return {str(widget.elem_id): value for widget, value in given.items()}


def choices_of(given: Given) -> Choices:
    """What the settings say."""
    said = values(given)
    return Choices(
        model=text_of(said["model"], LONGEST_NAME + 1),  # a longer one is refused, but need not be kept
        system_message=text_of(said["system"]),
        reasoning=bool(said["reasoning"]),
        temperature=temperature_of(said["temperature"]),
        max_tokens=limit_of(said["max-tokens"]),
        tools=bool(said["tools"]),
        read_here=bool(said["read-here"]),
    )


def menu(choices: Sequence[tuple[str, str]], spec: ModelSpec | None, *, chosen: bool = True) -> Any:
    """The list of models as (label, id), `spec` chosen, or what the page has."""
    if not chosen:
        return gr.Dropdown(choices=list(choices))
    return gr.Dropdown(choices=list(choices), value=spec.id if spec else None)


def notice(status: Status, words: Translator = ENGLISH) -> str:
    """The line that says what the model to come is doing, with a bar where it is known how far that is."""
    bar = "" if status.done is None else f'<progress max="1" value="{status.done:.3f}"></progress>'
    return (
        f'<p class="{status.phase}" role="status">{html.escape(words.render(status.sayings) or status.text)} {bar}</p>'
    )


def offer(better: ModelSpec | None, words: Translator = ENGLISH) -> Any:
    """The button that offers a better model, gone where there is none."""
    return gr.Button(words("better", model=words.model(better)) if better else "", visible=better is not None)


def composer(*, busy: bool | None = None, **more: Any) -> Any:
    """The composer, its buttons as they belong, or as they are where `busy` is None."""
    if busy is not None:
        more |= {"submit_btn": not busy, "stop_btn": busy}
    return gr.MultimodalTextbox(**more)


def switches(
    spec: ModelSpec | None,
    chosen: Choices | None = None,
    busy: bool | None = None,
    words: Translator = ENGLISH,
    *,
    reading: Transcriber | None = None,
) -> tuple[Any, ...]:
    """Reasoning, tools, temperature, the most tokens, the composer with its files, the examples of the empty chat,
    what is said of the model.

    The switches have the values `chosen` before, where there are any, else those that suit the model. `reading`
    reads what the model cannot take.
    """
    empty = gr.Chatbot(
        placeholder=f'<div class="empty">{html.escape(words("empty"))}</div>', examples=cast(Any, examples(spec, words))
    )
    if spec is None:
        return gr.skip(), gr.skip(), gr.skip(), gr.skip(), composer(busy=busy), empty, ""
    limit: dict[str, Any] = {} if chosen is None else {"value": chosen.max_tokens}
    chosen = chosen or Choices()
    can_reason, can_call = spec.reasoning, spec.tools != "none"
    box, about = takes(spec, words, busy, reading=reading)
    return (
        gr.Checkbox(
            value=can_reason and (not is_off(chosen.reasoning) or spec.always_reasons),
            interactive=can_reason and not spec.always_reasons,
            info=words("always_reasons") if spec.always_reasons else None if can_reason else words("never_reasons"),
        ),
        gr.Checkbox(value=can_call and chosen.tools, interactive=can_call, info=words(f"tools_{spec.tools}")),
        gr.Slider(
            value=usual_temperature(spec) if chosen.temperature is None else chosen.temperature,
            interactive=spec.temperature,
            info=None if spec.temperature else words("own_temperature"),
        ),
        gr.Number(info=words("longest_answer", count=spec.max_output_tokens), **limit),
        box,
        empty,
        about,
    )


def usual_temperature(spec: ModelSpec) -> float:
    """The temperature where the visitor has set none."""
    return dict(spec.defaults).get("temperature", TEMPERATURE)


def takes(
    spec: ModelSpec, words: Translator = ENGLISH, busy: bool | None = None, *, reading: Transcriber | None = None
) -> tuple[Any, str]:
    """The composer with what can be attached for a model, and what is said of that model.

    Kinds that `reading` cannot read now cannot be attached, and why is said before anybody records a sound.
    """
    absent = reading.absent if reading else {}
    read_here: list[Kind] = [kind for kind in READERS if reading and kind not in absent]
    sources = ["upload", "microphone"] if spec.audio or "audio" in read_here else ["upload"]
    unread = [saying for kind, saying in absent.items() if not (spec.image if kind == "image" else spec.audio)]
    more = f'<p role="status">{html.escape(words.render(unread))}</p>' if unread else ""
    said = (
        words.model(spec),
        words.source(spec.source),
        words("licence", licence=spec.licence) if spec.licence else "",
    )
    about = " · ".join(html.escape(part) for part in said if part)
    types = ",".join(kinds(spec, read_here=read_here))
    return composer(busy=busy, sources=sources), f'<p data-takes="{types}">{about}</p>{more}'


def attachments(planned: Sequence[AttachmentPlan], words: Translator = ENGLISH) -> str:
    """What becomes of each attachment; beside one that is refused, models that could take it, to be pressed."""
    rows: list[str] = []
    for plan in planned:
        said = words.render(plan.sayings)
        said = said if plan.outcome == "refused" else words("becomes", name=plan.name, said=said)
        others = "".join(map(_choice, plan.others[:OTHERS]))
        rows.append(f'<li class="{plan.outcome.split()[0]}"><span>{html.escape(said)}</span>{others}</li>')
    return f'<div role="status"><ul>{"".join(rows)}</ul></div>' if rows else ""


def being_checked(names: Sequence[str], words: Translator) -> str:
    """The same while it is being found out; page.js says for how long."""
    rows = [f'<li class="doing">{html.escape(words("looking_at", name=name))}</li>' for name in names]
    return f'<ul role="status">{"".join(rows)}</ul>'


def being_sent(files: Sequence[str], *, ready: bool, words: Translator) -> str:
    """What a message waits for on its way to being kept; `ready`: there is a model."""
    if not ready:
        said = words("sent_later")
    else:
        said = words("preparing", names=", ".join(files)) if files else words("sending")
    return f'<p class="doing" role="status">{html.escape(said)}</p>'


def _choice(spec: ModelSpec) -> str:
    return f'<button type="button" data-model="{html.escape(spec.id)}">{html.escape(spec.label)}</button>'


def key_panel(
    spec: ModelSpec | None,
    provider: ProviderSpec | None,
    *,
    missing: bool,
    typed: bool,
    taken: bool,
    own: bool = False,
    login: Literal["possible", "done"] | None = None,
    words: Translator = ENGLISH,
) -> tuple[Any, Any, Any]:
    """What stands between the chosen model and an answer: what is said of it, the box for a key, the way to forget it.

    The box is emptied whenever it is shown: a key goes from the browser to the server and never back. `login` is None
    where none would do for a key. `own`: only a visitor's own key helps, not one that the owner sets.
    """
    said = [html.escape(words.render(spec.advice(date.today())))] if spec else []
    if spec is not None and provider is not None and missing:
        needs = f"<b>{html.escape(words('key_missing', model=spec.label, provider=provider.label))}</b> "
        if taken:
            link = f'<a href="{provider.keys_at}" target="_blank" rel="noopener">{provider.keys_at.split("//")[-1]}</a>'
            instead = "" if own else " " + words("key_of_owner", name=provider.key_names[0])
            said.append(needs + words("key_how", link=link) + instead)
        else:
            said.append(needs + words("key_not_taken"))
        if login and taken:
            link = f'<a href="{LOGIN}">{words("login_link", provider=provider.label)}</a>'
            said.append(words("key_or_login", link=link))
    elif provider is not None and typed:
        said.append(words("key_used", provider=provider.label))
    elif provider is not None and login == "done":
        said.append(words("login_used", provider=provider.label))
    text = "".join(f"<p>{one}</p>" for one in said if one)
    return (
        gr.HTML(text, visible=bool(text)),
        gr.Textbox(
            value="",
            visible=missing and taken,
            placeholder=words("key_of", provider=provider.label) if provider else "",
            submit_btn=words("use_key"),
        ),
        gr.Button(visible=typed),
    )
