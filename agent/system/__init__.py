"""Functions that only some operating systems have. Elsewhere they do nothing."""
