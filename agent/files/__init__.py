"""Files that people attach and that models and tools make: recognised, stored, read, converted, planned for a model."""
