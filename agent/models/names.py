"""Names of models: how they are compared and shortened, and their variants."""

import re

VARIANT = re.compile(r"(?::[\w.-]+|[-@]\d{8}|-\d{4}-\d\d-\d\d|-latest)$")
"""The suffix of a dated snapshot, or of a server that the Hugging Face router shall choose."""


def key_of(name: str) -> str:
    """Return the name for comparison: without case and without the `models/` prefix in Google's own lists."""
    return name.casefold().removeprefix("models/")


def short_name(name: str) -> str:
    """Return the name without the organisation before it."""
    return name.rstrip("/").rsplit("/", 1)[-1]
