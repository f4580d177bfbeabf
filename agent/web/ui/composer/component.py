"""Gradio components for the messages of the page and of `/chat`, which load nothing of Gradio's but `gr.HTML`."""

from typing import Any, ClassVar

import gradio as gr
from gradio.components.multimodal_textbox import MultimodalData

from agent.i18n.text import N_


class Composer(gr.HTML):
    """Gives handlers a message as `{"text": ..., "files": [paths]}`. The modules of the page draw the box.

    `gr.MultimodalTextbox` would load players, a recorder and viewers with each visit.
    """

    data_model = MultimodalData
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
        "record": N_("Record audio"),
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

    def __init__(self, **options: Any) -> None:
        super().__init__(html_template="", js_on_load=None, padding=False, **options)

    def preprocess(  # pyright: ignore[reportIncompatibleMethodOverride] - of `gr.HTML` it is a text
        self, payload: MultimodalData | None
    ) -> dict[str, Any] | None:
        """Return the message for a handler."""
        return payload and {"text": payload.text, "files": [file.path for file in payload.files]}

    def postprocess(  # pyright: ignore[reportIncompatibleMethodOverride] - of `gr.HTML` it is a text
        self, value: object
    ) -> MultimodalData | None:
        """Return nothing: what is typed stays in the browser."""
        return None

    def api_info(self) -> dict[str, Any]:
        """Return the type of the value for programs."""
        return MultimodalData.model_json_schema()


class JsonValue(gr.HTML):
    """A value of `/chat`. `gr.JSON` would load its viewer with each visit of the page, which shows no such value."""

    def __init__(self, **options: Any) -> None:
        super().__init__(html_template="", js_on_load=None, **options)

    def postprocess(  # pyright: ignore[reportIncompatibleMethodOverride] - of `gr.HTML` it is a text
        self, value: Any
    ) -> Any:
        """Return the value as it is sent."""
        return value

    def api_info(self) -> dict[str, Any]:
        """Return the type of the value for programs: that of `gr.JSON`."""
        return {"type": {}, "description": "any valid json"}
