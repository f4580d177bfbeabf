"""A temporary chat of a program, begun by the event of the page's button."""

import re

from tests.support.http_client import HttpVisitor


def begin_temporary(program: HttpVisitor) -> str:
    """Begin a temporary chat in the program's session. Return its id."""
    button = next(one["id"] for one in program.config.json["components"] if one["props"].get("elem_id") == "open")
    event = next(one["id"] for one in program.events if [button, "click"] in one["targets"])
    assert program.join(event, ["temporary"]).status == 200
    found = re.search(r"temporary-[0-9a-f]{32}", program.listen())
    assert found is not None
    return found[0]
