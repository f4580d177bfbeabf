"""What a run is made of; `agent.run` puts it together."""
