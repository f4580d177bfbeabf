"""Finds the messages that are one text and nothing else.

Most messages are, and each request looks at all of them several times. Whoever looks for something rarer, such as files
or tool calls, can pass over these.
"""

from pydantic_ai.messages import ModelMessage, TextPart, UserPromptPart


def plain_text(message: ModelMessage) -> str | None:
    """Return the text of a prompt or an answer that is one text and nothing else, or None for any other message."""
    if len(message.parts) != 1:
        return None
    part = message.parts[0]
    # Not `isinstance`: the union of all parts makes it slow.
    if type(part) is not UserPromptPart and type(part) is not TextPart:
        return None
    return part.content if type(part.content) is str else None
