"""Renders texts as HTML: Markdown, formulas and code. Pure: no files, no network, no page."""
