"""Visitors' chats, without widgets and wire formats."""
