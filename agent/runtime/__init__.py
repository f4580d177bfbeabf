"""Runs: the handle that people get, the agent loop and its parts."""
