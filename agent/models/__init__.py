"""Models: the catalogue of those that are known, and what a model's name tells about it."""
