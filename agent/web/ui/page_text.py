"""The texts that the browser shows without asking the server: of widgets, of the page's scripts, and Gradio's own."""

from collections.abc import Mapping

from agent.i18n import _
from agent.i18n.translator import Translator

WIDGETS = {
    "new_chat": _("New chat"),
    "message": _("Message"),
    "model": _("Model"),
    "conversation": _("Conversation"),
    "earlier": _("Show earlier messages"),
    "settings": _("Settings"),
    "settings_hold": _("They hold from the next message on."),
    "system": _("System prompt"),
    "system_how": _("How the model should behave"),
    "reasoning": _("Reasoning"),
    "tools": _("Tools"),
    "read_here": _("Read pictures and sounds here"),
    "read_here_how": _("For models that cannot: the text in a picture and the speech in a sound are sent as text."),
    "temperature": _("Temperature"),
    "max_tokens": _("Maximum answer length (tokens)"),
    "no_limit": _("The model's own limit"),
    "key": _("Key"),
    "forget_keys": _("Forget my keys"),
    "fleeting": _("This Space keeps nothing for long: conversations are lost when it restarts."),
    "keep_days": _("Conversations are deleted after this many days without a message:"),
}
"""The texts of widgets that never change, by the name that `layout.static` takes."""
SCRIPTS = {
    "chat": _("Conversation"),
    "shortcuts": _("Keyboard shortcuts"),
    "edited": _("Your message, to be changed"),
    "waited": _("Waiting for the model · {seconds} s"),
    "close": _("Close"),
    "key_enter": _("Enter"),
    "key_shift_enter": _("Shift + Enter"),
    "key_escape": _("Esc"),
    "key_up": _("↑"),
    "key_help": _("Ctrl + /"),
    "does_send": _("Send the message"),
    "does_newline": _("Begin a new line"),
    "does_stop": _("Stop the answer"),
    "does_edit": _("In an empty box: edit your last message"),
    "does_help": _("Show this list"),
    "link_ask": _("Fetch the picture from {host} and attach it?"),
    "link_attach": _("Attach the picture"),
    "link_leave": _("Leave it as text"),
    "link_fetching": _("Fetching from {host}…"),
    "link_failed": _("The picture was not fetched."),
    "link_again": _("Try again"),
    "camera": _("Take a picture"),
    "camera_view": _("What the camera sees"),
    "camera_waiting": _("Waiting for the camera…"),
    "camera_other": _("Other camera"),
    "camera_cancel": _("Cancel"),
    "camera_refused": _(
        "The browser does not let this page use the camera. Allow it in the settings of this site, or attach a file."
    ),
    "camera_none": _("No camera was found. Connect one, or attach a file."),
    "camera_trouble": _("The camera gives no picture; another program may be using it."),
    "still_writing": _("The answer is still being written. Your text stays here."),
    "wide_code": _("Code"),
    "wide_table": _("Table"),
    "wide_formula": _("Formula"),
    "task": _("Task"),
    "drop": _("Drop files here"),
    "drop_folder": _("Folders can't be attached. Drop the files in them instead."),
    "drop_later": _("Your last message is still being sent. Drop the files again after that."),
    "log_in": _("Log in with Hugging Face"),
    "log_out": _("Log out ({name})"),
}
"""The texts of the scripts, by the name that they use."""
LABELS = {
    "Toggle Sidebar": _("Open or close the settings"),
    "Upload a file": _("Upload a file"),
    "File upload": _("File upload"),
    "Uploaded files": _("Uploaded files"),
    "Uploading": _("Uploading"),
    "File thumbnail": _("File thumbnail"),
    "Remove file": _("Remove file"),
    "Record audio": _("Record audio"),
    "Start recording": _("Start recording"),
    "Stop recording": _("Stop recording"),
    "Select input device": _("Select input device"),
    "Attach audio": _("Attach audio"),
    "Clear audio": _("Clear audio"),
    "Submit": _("Submit"),
    "Stop": _("Stop"),
    "Multimedia input field": _("Multimedia input field"),
    "Reset to default value": _("Reset to default value"),
}
"""Gradio's own labels that exist only in English, by that English."""


def translated(texts: Mapping[str, str], language: str) -> dict[str, str]:
    """Return these texts in one language, by the same names."""
    translate = Translator(language)
    return {name: translate(text) for name, text in texts.items()}
