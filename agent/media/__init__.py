"""Files that people attach and that models and tools make: kept, recognised, converted, decoded in a sandbox."""
