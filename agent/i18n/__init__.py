"""Sentences for people in several languages."""
