"""Diagnosis of this set-up, with a fix for each fault: `python -m agent.doctor`, docs/deployment.md."""
