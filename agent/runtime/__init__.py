"""The agent loop and its parts. `agent.run` is the handle that people get."""
