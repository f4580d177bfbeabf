"""A Gradio component for the settings of the page: a side bar with the browser's own controls."""

from typing import Any, ClassVar, cast

import gradio as gr

from agent.i18n.text import N_
from agent.web.chat.choices import TEMPERATURE

USUAL = {
    "reasoning": True,
    "tools": False,
    "web": False,
    "extract_text": False,
    "temperature": TEMPERATURE,
    "max_tokens": None,
}
"""The values that are shown until the server has sent those of the visitor."""


class SettingsPanel(gr.HTML):
    """Gives handlers what the visitor has set, as a dictionary with the names of `Choices`.

    A handler returns the values that change. The value `about` has what is said of each of them: its `info`, whether
    the model has it `fixed`, its `usual` value, and the `most` that the model takes. The modules of the page draw it.
    Components inside of it are shown below the settings.
    """

    LABELS: ClassVar = {
        "settings": N_("Settings"),
        "hold": N_("Changes apply to your next message."),
        "toggle": N_("Open or close the settings"),
        "system_message": N_("System prompt"),
        "system_how": N_("How the model should behave"),
        "reasoning": N_("Reasoning"),
        "tools": N_("Tools"),
        "web": N_("Web"),
        "extract_text": N_("Extract text from images and audio"),
        "temperature": N_("Temperature"),
        "max_tokens": N_("Maximum answer length (tokens)"),
        "no_limit": N_("The model's own limit"),
        "reset": N_("Reset to default value"),
        "refused": N_("Not changed. Enter a whole number of at least 1, or leave the field empty."),
        "lowered": N_("Changed to {count}, which is the most that this model can write."),
    }
    """The texts of the modules."""
    SCRIPT: ClassVar = """
const detail = { name: "settings", values: [{ element, props, watch }] };
document.dispatchEvent(new CustomEvent("gradio-event", { detail }));
"""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            USUAL,
            html_template="@children",
            js_on_load=self.SCRIPT,
            apply_default_css=False,
            padding=False,
            **options,
        )

    def preprocess(self, payload: Any) -> Any:
        """Return what is set, which comes from the browser."""
        return cast(dict[str, Any], payload) if isinstance(payload, dict) else {}

    def postprocess(self, value: Any) -> Any:
        """Return the values as they are sent."""
        return value

    def api_info(self) -> dict[str, Any]:
        """Return the type of the value for programs."""
        return {"type": "object"}
