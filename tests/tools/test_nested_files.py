"""Files that tools return inside other values."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_ai.messages import BinaryContent, ToolCallPart

from agent.tools.function_tools import execute, tool


async def returned(value: Any) -> Any:
    """Return the content of the result of a tool that returns this value."""
    made = tool(name="give")(lambda: value)
    return (await execute({"give": made}, ToolCallPart("give", "{}"), timeout=5)).content


class Drawing(BaseModel):
    """A picture with its title."""

    title: str
    picture: BinaryContent


@dataclass
class Page:
    """Drawings, and a sound."""

    drawings: list[Drawing]
    sound: BinaryContent


async def test_nested_files_follow_the_json_that_names_them() -> None:
    picture = BinaryContent(b"\x89PNG\xff" * 9, media_type="image/png", identifier="chart")
    sound = BinaryContent(b"RIFF\xff" * 9, media_type="audio/wav", vendor_metadata={"rate": 8})
    page = Page([Drawing(title="Rain", picture=picture)], sound)
    page_json = {
        "drawings": [{"title": "Rain", "picture": "See file chart."}],
        "sound": f"See file {sound.identifier}.",
    }
    for value, expected, files in (
        ({"picture": picture}, {"picture": "See file chart."}, [picture]),
        ([{"deep": ({"er": picture},)}], [{"deep": [{"er": "See file chart."}]}], [picture]),
        (Drawing(title="Rain", picture=picture), {"title": "Rain", "picture": "See file chart."}, [picture]),
        (page, page_json, [picture, sound]),
    ):
        text, *found = await returned(value)
        assert (json.loads(text), found) == (expected, files)
        assert [file.identifier for file in found] == [file.identifier for file in files]


async def test_nested_file_beside_a_file_follows_its_json() -> None:
    picture = BinaryContent(b"\x89PNG\xff", media_type="image/png", identifier="chart")
    content = await returned([picture, {"again": picture}, "Done."])
    assert content == [picture, '{"again":"See file chart."}', picture, "Done."]


async def test_json_that_only_resembles_a_file_is_unchanged() -> None:
    value = {"kind": "binary", "data": 5, "more": [{"kind": "binary"}]}
    assert json.loads(await returned(value)) == value
