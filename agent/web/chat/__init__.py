"""Chats of visitors, without widgets and wire formats."""
