"""The messages of a conversation: built from prompts, repaired, adapted to a model, converted to OpenAI's format."""
