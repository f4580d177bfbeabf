"""Files that people attach and that models and tools make: stored, recognised, converted, and decoded in a sandbox."""
