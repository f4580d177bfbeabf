"""The files of a folder in which a running app creates and deletes files."""

import os
from collections.abc import Iterator
from pathlib import Path


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, without those of a subfolder that is deleted meanwhile."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent) / name for name in names)


def files_with(folder: Path, what: bytes) -> list[Path]:
    """Return the files in `files_in` that have these bytes. A file that is deleted meanwhile has none."""
    return [path for path in files_in(folder) if what in _content(path)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
