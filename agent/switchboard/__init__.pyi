# For type checkers: the names of `agent`. While the program runs, `__init__.py` decides where they come from.
from agent import *  # noqa: F403 - a stub re-exports all of them
