"""Readers of the export files of other programs, one module each."""
