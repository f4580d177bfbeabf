"""The catalogue of known models, and the capabilities that a model's name implies."""
