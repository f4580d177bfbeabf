"""What the widgets show of a model and of a run: pure functions to widget updates."""

import html
from collections.abc import Sequence
from typing import Any

import gradio as gr

from agent.catalog import ModelSpec
from agent.providers import Served, Status
from agent.ui.inputs import takes
from agent.ui.turn import Choices

TEMPERATURE = 0.7
MOST_TOKENS = 1024
TOOLS = {
    "native": "It may calculate, tell the time and convert units.",
    "router": "This small model is guided to call tools by a schema; it errs more often.",
    "none": "This model is too small to call tools.",
}


def menu(served: Sequence[Served], spec: ModelSpec | None) -> Any:
    """The list of models, `spec` chosen."""
    choices = [(one.spec.label, one.spec.id) for one in served]
    return gr.Dropdown(choices=choices, value=spec.id if spec else None)


def notice(status: Status) -> str:
    """The line that says what the model to come is doing, with a bar where it is known how far that is."""
    bar = "" if status.done is None else f'<progress max="1" value="{status.done:.3f}"></progress>'
    return f'<p class="{status.phase}" role="status">{html.escape(status.text)} {bar}</p>'


def offer(better: ModelSpec | None) -> Any:
    """The button that offers a better model, gone where there is none."""
    return gr.Button(f"{better.label} is ready: switch to it" if better else "", visible=better is not None)


def composer(*, busy: bool | None = None, **more: Any) -> Any:
    """The composer, its buttons as they belong, or as they are where `busy` is None."""
    if busy is not None:
        more |= {"submit_btn": not busy, "stop_btn": busy}
    return gr.MultimodalTextbox(**more)


def switches(spec: ModelSpec | None, chosen: Choices | None = None, busy: bool | None = None) -> tuple[Any, ...]:
    """Reasoning, tools, temperature, the most tokens, the composer with its files, what is said of the model.

    The switches have the values `chosen` before, where there are any, else those that suit the model.
    """
    if spec is None:
        return gr.skip(), gr.skip(), gr.skip(), gr.skip(), composer(busy=busy), ""
    chosen = chosen or Choices()
    suits = dict(spec.defaults).get("temperature", TEMPERATURE)
    can_reason, can_call = spec.reasoning, spec.tools != "none"
    return (
        gr.Checkbox(
            value=can_reason and chosen.reasoning,
            interactive=can_reason,
            info=None if can_reason else "This model does not reason aloud.",
        ),
        gr.Checkbox(value=can_call and chosen.tools, interactive=can_call, info=TOOLS[spec.tools]),
        gr.Slider(value=suits if chosen.temperature is None else chosen.temperature),
        gr.Slider(maximum=spec.max_output_tokens, value=min(chosen.max_tokens or MOST_TOKENS, spec.max_output_tokens)),
        composer(busy=busy, file_types=takes(spec)),
        _about(spec),
    )


def _about(spec: ModelSpec) -> str:
    """Which model it is, from where and under which licence."""
    said = (spec.label, spec.source, f"{spec.licence} licence" if spec.licence else "")
    return f"<p>{' · '.join(html.escape(part) for part in said if part)}</p>"
