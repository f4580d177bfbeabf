"""Gradio components for messages, settings and the values of `/chat`, which load nothing of Gradio's but `gr.HTML`."""

from typing import Any, ClassVar, cast

import gradio as gr

from agent.i18n.text import N_
from agent.web.chat.choices import TEMPERATURE
from agent.web.ui.page_text import translated

MESSAGE, JSON, TEXT = cast(Any, gr.MultimodalTextbox), cast(Any, gr.JSON), cast(Any, gr.Textbox)
"""The components of Gradio's with the same values. They would load players, a recorder and viewers with each visit."""


class Message(gr.HTML):
    """Gives handlers a message as `{"text": ..., "files": [paths]}`. The modules of the page draw the box."""

    data_model = MESSAGE.data_model
    api_info, example_payload, example_value = MESSAGE.api_info, MESSAGE.example_payload, MESSAGE.example_value

    def __init__(self, *, js_on_load: str | None = None, **options: Any) -> None:
        super().__init__(html_template="", js_on_load=js_on_load, padding=False, **options)

    def preprocess(self, payload: Any) -> Any:
        """Return the message for a handler."""
        return payload and {"text": payload.text, "files": [file.path for file in payload.files]}

    def postprocess(self, value: object) -> Any:
        """Return an empty message, because what is typed stays in the browser."""
        return MESSAGE.data_model(text="")


class Composer(Message):
    """A box for a message: a text that grows, files, a recorder, and a button that sends, or stops an answer.

    Its events are "submit", with the message as the value, and "stop". Give "submit" `trigger_mode="multiple"`: by
    default Gradio drops a message that is sent before the event of the last one has ended. Return
    `Composer(running=True)` while an answer is written, so that the button stops it. With `microphone`, sound can be
    recorded.
    """

    TEMPLATE_DIR = "."
    LABELS: ClassVar = {
        "message": N_("Message"),
        "send": N_("Send"),
        "stop": N_("Stop"),
        "attach": N_("Upload a file"),
        "files": N_("Uploaded files"),
        "uploading": N_("Uploading"),
        "open": N_("Open {name}"),
        "remove": N_("Remove file: {name}"),
        "tooLarge": N_("Nothing was attached. A file can have at most {most}, and these are larger: {names}"),
        "failed": N_("Nothing was attached. Check the connection and try again."),
        "again": N_("Try again"),
        "record": N_("Record audio"),
        "dictate": N_("Dictate"),
        "write": N_("Write it down instead"),
        "recording": N_("Recording"),
        "done": N_("Attach audio"),
        "cancel": N_("Cancel"),
        "waiting": N_("Waiting for the microphone…"),
        "refused": N_(
            "The browser does not let this page use the microphone. Allow it in the settings of this site, or attach a "
            "file."
        ),
        "none": N_("No microphone was found. Connect one, or attach a file."),
        "trouble": N_("The microphone gives no sound; another program may be using it."),
    }
    """The texts of the modules."""
    SCRIPT: ClassVar = """
import(new URL(props.modules + "composer.js", document.baseURI))
  .then(({ connect }) => connect(element, { props, trigger, watch, events: ["submit", "stop"] }));
"""

    def __init__(self, *, running: bool = False, microphone: bool = True, language: str = "en", **options: Any) -> None:
        super().__init__(
            js_on_load=self.SCRIPT,
            apply_default_css=False,
            modules=f"gradio_api/custom_component/{Composer.get_component_class_id()}/client/composer/",
            running=running,
            microphone=microphone,
            language=language,
            labels=translated(self.LABELS, language),
            **options,
        )


# Gradio serves the files of a component from the folder of its module, and scripts of components import one another.
Composer.__module__ = __name__.rsplit(".", 2)[0]


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


class JsonValue(gr.HTML):
    """A value of `/chat` that JSON can carry."""

    api_info, example_payload, example_value = JSON.api_info, JSON.example_payload, JSON.example_value

    def __init__(self, **options: Any) -> None:
        super().__init__(html_template="", js_on_load=None, **options)

    def postprocess(self, value: Any) -> Any:
        """Return the value as it is sent."""
        return value


class TextValue(JsonValue):
    """A text of `/chat`."""

    api_info, example_payload, example_value = TEXT.api_info, TEXT.example_payload, TEXT.example_value
