"""Deployment of a Spacefile as a Hugging Face Space. `python -m agent.deploy` is its only public entry point."""
