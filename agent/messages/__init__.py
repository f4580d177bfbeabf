"""Messages of a conversation: made from what people pass in, repaired, adapted to a model, as OpenAI's format."""
