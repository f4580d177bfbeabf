"""The names of attached files: on the disk, and as their visitors know them."""

import re
from pathlib import Path

LONGEST_NAME = 200
"""The longest file name in bytes."""
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f`$!{}]')
_STAND_INS = {ord(sign): 0xF000 + ord(sign) for sign in '<>:"|?*`$!{}'}
"""Characters for private use that stand on the disk for signs that are forbidden there, as on network drives."""
_SIGNS = {stand_in: sign for sign, stand_in in _STAND_INS.items()}


def stored_name(name: str) -> str:
    """Return the name of a file on the disk. `given_name` returns the visitor's name from it."""
    return safe_name(name.translate(_STAND_INS))


def given_name(path: Path) -> str:
    """Return the name that the visitor knows, without folders and control characters. It can have any other sign."""
    return path.name.translate(_SIGNS)


def safe_name(name: str) -> str:
    """Return the last part of a file name without characters that file systems or shells misread.

    Gradio's pages change names in the same way.
    """
    cut = _FORBIDDEN.sub("", name.replace("\\", "/").rpartition("/")[2]).rstrip(" .")
    stem, dot, suffix = cut.rpartition(".")
    if not stem:
        stem, dot, suffix = (suffix, "", "") if not dot else ("file", dot, suffix)
    room = LONGEST_NAME - len(f"{dot}{suffix}".encode()[: LONGEST_NAME // 2])
    kept = f"{dot}{suffix}".encode()[: LONGEST_NAME // 2].decode(errors="ignore")
    return (stem.encode()[:room].decode(errors="ignore") + kept) or "file"
