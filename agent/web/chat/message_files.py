"""The files of a message on the disk: how many and how large they can be, and their bytes and texts."""

from collections.abc import Sequence
from pathlib import Path

from agent.errors import InputError
from agent.i18n import _
from agent.web.file_names import given_name

MAX_FILES = 16


def check_files(files: Sequence[Path], max_bytes: int) -> None:
    """Raise `InputError` if one message cannot have these files. Reads none of them.

    A file named twice would be in memory twice. All files together can have twice `max_bytes`.
    """
    if len(files) > MAX_FILES:
        raise InputError(
            _(
                "The message has {count:,} files; {most} is the most. Send some of them in another message.",
                count=len(files),
                most=MAX_FILES,
            )
        )
    seen = set[Path]()
    for path in files:
        if path in seen:
            raise InputError(_("{name} is attached twice. Remove one of the two.", name=given_name(path)))
        seen.add(path)
    if (size := sum(map(_size, files))) > 2 * max_bytes:
        raise InputError(
            _(
                "The files have {size:.1f} MB together; {most:.0f} MB is the most for one message.",
                size=size / 1e6,
                most=2 * max_bytes / 1e6,
            )
        )


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file. Raises `InputError`."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise InputError(
                _(
                    "{name} has {size:.1f} MB; {most:.0f} MB is the most.",
                    name=given_name(path),
                    size=size / 1e6,
                    most=max_bytes / 1e6,
                )
            )
        return path.read_bytes()
    except OSError as error:
        raise InputError(_("{name} could not be read. Attach it again.", name=given_name(path))) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the file's own plan says that it is gone
        return 0
