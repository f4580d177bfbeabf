"""The chat in a terminal. `python -m agent` starts it."""
