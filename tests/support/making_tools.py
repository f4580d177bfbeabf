"""A tool that returns files, for tests: a picture, a sound, a PDF and a table. The sound is inside a dict."""

from pydantic_ai.messages import BinaryContent

from agent.tools.function_tools import tool
from tests.support import media_files

MADE = {
    "picture": BinaryContent(media_files.picture("PNG", (320, 200)), media_type="image/png", identifier="chart"),
    "sound": BinaryContent(media_files.WAV, media_type="audio/wav", identifier="tone"),
    "report": BinaryContent(b"%PDF-1.4\n%%EOF\n", media_type="application/pdf", identifier="report"),
    "table": BinaryContent(b"month,rain\nMay,41\n", media_type="text/csv", identifier="rain.csv"),
}


@tool
def make() -> list[str | BinaryContent | dict[str, BinaryContent]]:
    """Make a picture, a sound and two files."""
    picture, sound, *others = MADE.values()
    return ["Made of last year's rain.", picture, {"sound": sound}, *others]
