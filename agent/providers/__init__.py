"""Connections to models: one module for each wire protocol, errors, reasoning, retries and stand-ins."""
