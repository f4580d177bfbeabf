"""Conversations in SQL: one store, on SQLite and on PostgreSQL."""
