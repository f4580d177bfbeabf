"""Titles of tools for people, in the chat, in links and in exports. Models know tools only by their names."""

from agent.i18n import N_, LocalizedText

ASK_USER = "ask_user"
"""The name of `agent.tools.ask_user`. Its question and the answer are shown as text."""
TITLES = {
    "calculate": N_("Calculate"),
    "current_time": N_("Current time"),
    "convert_units": N_("Convert units"),
    "search_files": N_("Search files"),
    "read_pages": N_("Read pages"),
    ASK_USER: N_("Question"),
}
"""The titles of this program's own tools, by their names. All languages have them."""


def tool_title(name: str) -> str:
    """Return the title of the tool with this name. Another tool has the words of its name: "Set timer"."""
    if (title := TITLES.get(name)) is not None:
        return LocalizedText(title)
    words = " ".join(name.replace("_", " ").split())
    return words[:1].upper() + words[1:] or name
