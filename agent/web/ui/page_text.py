"""The texts that the browser shows without asking the server: of widgets, of the page's scripts, and Gradio's own."""

from collections.abc import Mapping

from agent.i18n import N_
from agent.i18n.translator import Translator

WIDGETS = {
    "new_chat": N_("New chat"),
    "message": N_("Message"),
    "model": N_("Model"),
    "conversation": N_("Conversation"),
    "earlier": N_("Show earlier messages"),
    "settings": N_("Settings"),
    "settings_hold": N_("Changes apply to your next message."),
    "system": N_("System prompt"),
    "system_how": N_("How the model should behave"),
    "reasoning": N_("Reasoning"),
    "tools": N_("Tools"),
    "extract_text": N_("Extract text from images and audio"),
    "extract_text_how": N_("For text-only models: text in images and speech in audio are extracted on this server."),
    "temperature": N_("Temperature"),
    "max_tokens": N_("Maximum answer length (tokens)"),
    "no_limit": N_("The model's own limit"),
    "key": N_("Key"),
    "forget_keys": N_("Forget my keys"),
    "fleeting": N_("Chats here are deleted when the Space restarts."),
    "keep_days": N_("Conversations are deleted after this many days without a message:"),
}
"""The texts of widgets that never change, by the name that `layout.static` takes."""
SCRIPTS = {
    "chat": N_("Conversation"),
    "shortcuts": N_("Keyboard shortcuts"),
    "edited": N_("Edit your message"),
    "waited": N_("Waiting for the model · {seconds} s"),
    "close": N_("Close"),
    "key_enter": N_("Enter"),
    "key_shift_enter": N_("Shift + Enter"),
    "key_escape": N_("Esc"),
    "key_up": N_("↑"),
    "key_help": N_("Ctrl + /"),
    "does_send": N_("Send the message"),
    "does_newline": N_("New line"),
    "does_stop": N_("Stop the answer"),
    "does_edit": N_("In an empty box: edit your last message"),
    "does_help": N_("Show this list"),
    "link_ask": N_("Fetch the picture from {host} and attach it?"),
    "link_attach": N_("Attach the picture"),
    "link_leave": N_("Leave it as text"),
    "link_fetching": N_("Fetching from {host}…"),
    "link_failed": N_("The picture was not fetched."),
    "link_again": N_("Try again"),
    "camera": N_("Take a picture"),
    "camera_view": N_("What the camera sees"),
    "camera_waiting": N_("Waiting for the camera…"),
    "camera_other": N_("Other camera"),
    "camera_cancel": N_("Cancel"),
    "camera_refused": N_(
        "The browser does not let this page use the camera. Allow it in the settings of this site, or attach a file."
    ),
    "camera_none": N_("No camera was found. Connect one, or attach a file."),
    "camera_trouble": N_("The camera gives no picture; another program may be using it."),
    "to_end": N_("Jump to the end"),
    "answer_ready": N_("Answer ready"),
    "answer_asks": N_("Waiting for you"),
    "still_writing": N_("The answer is still being written. Your text stays here."),
    "wide_code": N_("Code"),
    "wide_table": N_("Table"),
    "wide_formula": N_("Formula"),
    "task": N_("Task"),
    "drop": N_("Drop files here"),
    "drop_folder": N_("Folders can't be attached. Drop the files in them instead."),
    "drop_later": N_("Your last message is still being sent. Drop the files again after that."),
    "log_in": N_("Log in with Hugging Face"),
    "log_out": N_("Log out ({name})"),
}
"""The texts of the scripts, by the name that they use."""
LABELS = {
    "Toggle Sidebar": N_("Open or close the settings"),
    "Upload a file": N_("Upload a file"),
    "File upload": N_("File upload"),
    "Uploaded files": N_("Uploaded files"),
    "Uploading": N_("Uploading"),
    "File thumbnail": N_("File thumbnail"),
    "Remove file": N_("Remove file"),
    "Record audio": N_("Record audio"),
    "Start recording": N_("Start recording"),
    "Stop recording": N_("Stop recording"),
    "Select input device": N_("Select input device"),
    "Attach audio": N_("Attach audio"),
    "Clear audio": N_("Clear audio"),
    "Submit": N_("Submit"),
    "Stop": N_("Stop"),
    "Multimedia input field": N_("Multimedia input field"),
    "Reset to default value": N_("Reset to default value"),
}
"""Gradio's own labels that exist only in English, by that English."""


def translated(texts: Mapping[str, str], language: str) -> dict[str, str]:
    """Return these texts in one language, by the same names. Their fields stay: the scripts fill them."""
    translate = Translator(language)
    return {name: translate.template(text) for name, text in texts.items()}
