"""From a Spacefile to a running Hugging Face Space: `python -m agent.deploy`, which is all that is meant to be used."""
