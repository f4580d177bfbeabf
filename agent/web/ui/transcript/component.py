"""A Gradio component that shows the turns of a chat: bubbles that grow block by block, steps, captions and buttons."""

from collections.abc import Sequence
from typing import Any, ClassVar

import gradio as gr

from agent.i18n.text import N_
from agent.rendering.bubbles import Turn
from agent.web.ui.page_text import translated


class Transcript(gr.HTML):
    """Shows turns, which a handler yields as its value: `ResponseTurns` makes them from the responses of a run.

    `actions` are the buttons below an answer: "copy", "edit", "retry", "branch". Each click is an event of that name,
    and so are "choose" (one of the turn's `buttons`, with its value) and "version" (with the `message` to show);
    `gr.EventData` has the id of the turn. `height` is CSS.
    Don't take the value as an input: it comes from the browser.
    """

    TEMPLATE_DIR = "."
    LABELS: ClassVar = {
        "chat": N_("Conversation"),
        "you": N_("Your message"),
        "answer": N_("Answer"),
        "column": N_("Answer of {name}"),
        "columns": N_("Models"),
        "chosen": N_("The chat goes on with this answer"),
        "reasoning": N_("Reasoning"),
        "seconds": N_("{seconds} s"),
        "wait": N_("waiting for the model"),
        "waited": N_("Waiting for the model · {seconds} s"),
        "source": N_("Source {number}: {title}"),
        "page": N_("page {page}"),
        "document": N_("Document"),
        "asks": N_("Waiting for you"),
        "ready": N_("Answer ready"),
        "copy": N_("Copy message"),
        "speak": N_("Read aloud"),
        "code": N_("Copy the code"),
        "save": N_("Save as {name}"),
        "preview": N_("Preview"),
        "changes": N_("Changes"),
        "older": N_("Previous version"),
        "newer": N_("Next version"),
        "full": N_("Full screen"),
        "close": N_("Close"),
        "failed": N_("That did not work. Check the connection and try again."),
        "previewFailed": N_("The preview reports: {why}"),
        "previewLeft": N_("it left its page, so it was closed"),
        "previewBlocked": N_("{name} was not loaded, because a preview has no network"),
        "drawingLate": N_("the drawing takes too long"),
        "drawingLoads": N_("a chart cannot load data from a URL"),
        "line": N_("line {number}"),
        "fix": N_("Fix this error"),
        "fixText": N_("The preview of {name} reports:"),
        "fixAsk": N_("Please fix this, and write the whole code again."),
        "same": N_("Nothing has changed."),
        "gap": N_("Unchanged lines: {count}"),
        "plot": N_("Plot of {names}"),
        "rows": N_("These are the first {count} rows."),
        "run": N_("Run"),
        "stop": N_("Stop"),
        "output": N_("Output of the program"),
        "starting": N_("Python is being loaded…"),
        "runs": N_("The program runs…"),
        "ended": N_("The program has ended."),
        "noOutput": N_("The program has ended without any output."),
        "runFailed": N_("The program has failed."),
        "noPackage": N_("Python has no package “{name}” on this page. The owner of the page can add it."),
        "stopped": N_("The program was stopped."),
        "tooMuch": N_("The program was stopped, because it wrote too much."),
        "cutOutput": N_("The rest of the output is not shown."),
        "pythonFailed": N_("Python could not be loaded: {why}"),
        "noWorker": N_("the browser has started no worker"),
        "plotted": N_("Plot {number}"),
        "runText": N_("This Python code reports:"),
        "markdown": N_("Copy the table as Markdown"),
        "csv": N_("Copy the table as CSV"),
        "wideCode": N_("Code"),
        "wideTable": N_("Table"),
        "wideFormula": N_("Formula"),
        "task": N_("Task"),
        "copied": N_("Copied"),
        "copyFailed": N_("The browser does not let this page copy. Select the text instead."),
        "edit": N_("Edit"),
        "erase": N_("Delete this message and what follows it"),
        "good": N_("Good answer"),
        "bad": N_("Bad answer"),
        "rewrite": N_("Change the answer"),
        "retry": N_("Retry"),
        "retry-with": N_("Retry with…"),
        "branch": N_("Branch from here into a new chat"),
        "picture": N_("Share as a picture"),
        "answerOlder": N_("Previous version of the answer"),
        "answerNewer": N_("Next version of the answer"),
        "questionOlder": N_("Previous version of your message"),
        "questionNewer": N_("Next version of your message"),
        "toEnd": N_("Jump to the end"),
        "earlier": N_("Show earlier messages"),
        "notPrinted": N_("Earlier messages are not printed here. Export the chat as a page to print all of it."),
        "undo": N_("Undo"),
        "editing": N_("Edit your message"),
        "loading": N_("The text is being loaded…"),
        "send": N_("Send"),
        "cancel": N_("Cancel"),
    }
    SCRIPT: ClassVar = """
import(new URL(props.modules + "transcript.js", document.baseURI)).then(({ connect }) =>
  connect(element, { props, trigger, watch, events: ["copy", "choose", "edit", "retry", "version", "branch"] }));
"""

    def __init__(
        self,
        value: Sequence[Turn] = (),
        *,
        actions: Sequence[str] = ("copy",),
        height: str = "70vh",
        language: str = "en",
        **options: Any,
    ) -> None:
        # Gradio serves the folder of a component's files at this address, whatever their place on the disk.
        modules = f"gradio_api/custom_component/{Transcript.get_component_class_id()}/client/transcript/"
        super().__init__(
            [*value],
            html_template="",
            js_on_load=self.SCRIPT,
            apply_default_css=False,
            modules=modules,
            actions=[*actions],
            height=height,
            language=language,
            labels=translated(self.LABELS, language),
            **options,
        )

    def postprocess(  # pyright: ignore[reportIncompatibleMethodOverride] - of `gr.HTML` it is a text
        self, value: Sequence[Turn] | None
    ) -> list[Turn]:
        """Return the turns as they are sent."""
        return [*value] if value else []

    def api_info(self) -> dict[str, Any]:
        """Return the type of the value for programs."""
        return {"type": "array", "items": {"type": "object"}}


# Gradio serves the files of a component from the folder of its module, and scripts of components import one another.
Transcript.__module__ = __name__.rsplit(".", 2)[0]
