"""The places of the project's own files, which differ between a checkout and an installed package.

A checkout has `configs/` and `app.py` beside `agent/`, and the program writes into the checkout. A wheel has the same
files in `agent/installed/` (see pyproject.toml), and the program writes into the user's own folder, because
`site-packages` belongs to the installer. It also does so in a checkout that is read-only.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_BUNDLED = _PACKAGE / "installed"

IS_INSTALLED = _BUNDLED.is_dir()
"""True for a package from a wheel, False in a checkout, also if it is installed with `pip install -e`."""
FILES = _BUNDLED if IS_INSTALLED else _PACKAGE.parent
"""The folder of `configs/`, `app.py` and the requirements files."""


def _home() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".local" / "share") / "switchboard"


HOME = FILES if not IS_INSTALLED and os.access(FILES, os.W_OK) else _home()
"""The folder of what the program writes. Relative paths of the settings start here."""
