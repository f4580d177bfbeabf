"""What the composer sends: text and files as message parts, refused with a reason before any network."""

import asyncio
from pathlib import Path
from typing import Any

from pydantic_ai.messages import UserContent

from agent.catalog import ModelSpec
from agent.errors import InputError
from agent.media import MediaStore, sniff

MAX_TEXT = 200_000
TEXT_SUFFIXES = {".txt", ".md", ".csv", ".json", ".py", ".log", ".toml", ".yaml", ".yml", ".html", ".css", ".js"}


async def parts_of(
    value: dict[str, Any] | None, *, spec: ModelSpec, media: MediaStore, owner: str, max_bytes: int
) -> list[UserContent]:
    """The parts of a submitted message. Raises `InputError` with a sentence; then nothing has been kept."""
    text = str((value or {}).get("text") or "")
    files = [Path(str(item)) for item in (value or {}).get("files") or []]
    if not text.strip() and not files:
        raise InputError("Write something first.")
    if len(text) > MAX_TEXT:
        raise InputError(f"The message has {len(text):,} characters; {MAX_TEXT:,} is the most.")
    read = [(path.name, await asyncio.to_thread(_read, path, max_bytes)) for path in files]
    checked = [(name, data, _kind(name, data, spec)) for name, data in read]
    parts: list[UserContent] = [text] if text.strip() else []
    for name, data, kind in checked:
        parts.append(_quoted(name, data) if kind == "text" else await media.add(owner, data, kind))
    return parts


def takes(spec: ModelSpec | None) -> list[str]:
    """The file types that the chosen model can be given, as the composer names them."""
    kinds = sorted(TEXT_SUFFIXES)
    if spec is not None and spec.image:
        kinds = ["image", *kinds]
    if spec is not None and spec.audio:
        kinds = ["audio", *kinds]
    return kinds


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise InputError(f"{path.name} has {size / 1e6:.1f} MB; {max_bytes / 1e6:.0f} MB is the most.")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path.name} could not be read. Attach it again.") from error


def _kind(name: str, data: bytes, spec: ModelSpec) -> str:
    if Path(name).suffix.lower() in TEXT_SUFFIXES:
        return "text"
    kind = sniff(data, name)
    if kind.startswith("image/") and not spec.image:
        raise InputError(f"{spec.label} cannot see pictures. Remove {name}, or choose a model that can.")
    if kind.startswith("audio/") and not spec.audio:
        raise InputError(f"{spec.label} cannot hear sound. Remove {name}, or choose a model that can.")
    return kind


def _quoted(name: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not a UTF-8 text.") from error
    if len(text) > MAX_TEXT:
        raise InputError(f"{name} has {len(text):,} characters; {MAX_TEXT:,} is the most.")
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{name}:\n{fence}\n{text}\n{fence}"
