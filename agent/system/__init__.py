"""Functions of the operating system that not every system has."""
