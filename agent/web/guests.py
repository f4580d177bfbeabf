"""The one name of all visitors without a cookie, because they cannot be told apart."""

GUEST = "guest"
"""Stands for the visitor's id in their sessions, in the shares that they have together, and before their owners."""
