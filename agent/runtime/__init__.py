"""The parts of a run. `agent.run` puts them together."""
