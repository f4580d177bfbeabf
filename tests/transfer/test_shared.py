"""The messages that a read-only link shows: all that its page shows, and nothing of what it does not."""

from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.files.parts import extracted_text, quoted_file
from agent.files.store import ROUTE
from agent.history import Entry, Note
from agent.history.codec import dump_entries, load_entries
from agent.i18n.translator import ENGLISH
from agent.transfer.imports.fields import quoted
from agent.transfer.shared import NOT_INCLUDED, shared_entries

HIDDEN = "quizzaciously"
"""A word in all that no link shows."""
FILE = "flabbergast"
"""A word in all that a link shows only with attachments."""
ID = f"{'ab' * 32}.png"


def conversation() -> list[Entry]:
    """Return a question with files, a tool call and an answer. Every field that could hold a secret holds one."""
    picture = ImageUrl(ROUTE + ID, media_type="image/png", identifier=f"{FILE}.png")
    binary: Any = BinaryContent(b"", media_type="image/png", identifier=ID)
    secret: dict[str, Any] = {"provider_name": HIDDEN, "provider_details": {HIDDEN: HIDDEN}, "id": HIDDEN}
    messages: list[ModelMessage] = [
        ModelRequest(
            [
                SystemPromptPart(HIDDEN),
                UserPromptPart(
                    [
                        "Typed",
                        picture,
                        extracted_text(FILE, "scan.png", "image"),
                        quoted_file(f"{FILE}.txt", f"```\n{FILE}\n```"),
                        TextContent("More", metadata={"any": HIDDEN}),
                    ]
                ),
            ],
            instructions=HIDDEN,
            metadata={HIDDEN: HIDDEN},
        ),
        ModelResponse(
            [
                ThinkingPart("Seen thoughts", signature=HIDDEN, **secret),
                ThinkingPart("", signature=HIDDEN),
                TextPart("Seen text", **secret),
                ToolCallPart("look", {"at": "seen argument"}, "call-1", **secret),
            ],
            model_name="seen-model",
            provider_name=HIDDEN,
            provider_url=f"http://{HIDDEN}/",
            provider_response_id=HIDDEN,
            provider_details={HIDDEN: HIDDEN},
            metadata={HIDDEN: HIDDEN},
        ),
        ModelRequest(
            [
                ToolReturnPart(
                    "look",
                    {"seen": ["seen result", DocumentUrl(ROUTE + ID, media_type="text/plain", identifier=FILE)]},
                    "call-1",
                    metadata={HIDDEN: HIDDEN},
                )
            ]
        ),
        ModelResponse([TextPart("Seen end"), FilePart(BinaryContent.narrow_type(binary), **secret)]),
        ModelRequest([UserPromptPart(quoted_file(f"{FILE}.txt", FILE))]),
    ]
    note = Note(run_id="run", model="seen-model", ended="stop", attachments=(ID,), cost=12345.5)
    return [
        Entry(id=f"e{n}", parent_id=f"e{n - 1}" if n else None, message=m, note=note) for n, m in enumerate(messages)
    ]


@pytest.mark.parametrize("with_files", [False, True])
def test_only_what_the_page_shows_is_shared(with_files: bool) -> None:
    shared = [*shared_entries(conversation(), ENGLISH, with_files=with_files)]
    text = "\n".join(dump_entries(shared))
    assert [*load_entries(dump_entries(shared))] == shared
    assert HIDDEN not in text
    assert "12345" not in text
    for seen in (
        *("Typed", "More", "Seen thoughts", "Seen text", "seen argument", "seen result", "Seen end", "seen-model"),
    ):
        assert seen in text
    assert (FILE in text, ID in text, str(NOT_INCLUDED) in text) == (with_files, with_files, not with_files)


def test_typed_text_is_no_file() -> None:
    typed = ("notes.txt:\nno fence", "Mend this:\n```\ncode\n```", "a.py:\n```\ncode\n```\nand more", "```\ncode\n```")
    for text in typed:
        entry = Entry(parent_id=None, message=ModelRequest([UserPromptPart([text, text])]))
        [shared] = shared_entries([entry], ENGLISH, with_files=False)
        part: Any = shared.message.parts[0]
        assert part.content[0] == text


@pytest.mark.parametrize("name", ["notes.txt", "a\nb.txt", " a\r\nb.py", "no suffix", "Makefile", ""])
def test_file_of_any_name_is_left_out(name: str) -> None:
    """This is how the page quotes files, whose names have a suffix, and how imports do, which know any name."""
    for text in ([quoted_file(name, FILE)] if "." in name else []) + [quoted(name, FILE)]:
        for parts in ([text], ["Typed", text]):
            entry = Entry(parent_id=None, message=ModelRequest([UserPromptPart(parts)]))
            [shared] = shared_entries([entry], ENGLISH, with_files=False)
            assert FILE not in str(shared.message)
            assert str(NOT_INCLUDED) in str(shared.message)
