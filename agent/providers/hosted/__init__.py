"""The vendors' own dialects, one module each, imported when it is first spoken."""
