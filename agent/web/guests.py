"""The one name of all visitors without a cookie, because they cannot be told apart."""

GUEST = "guest"
"""Replaces the visitor's id in the sessions and the common shares of guests. The ids of their owners begin with it."""
