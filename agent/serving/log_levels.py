"""Loggers of libraries that write what visitors say. They stay at INFO whatever level is set for the rest."""

import logging

WITH_CONTENT = (
    "aiosqlite",
    "anthropic",
    "google_genai",
    "gradio",
    "httpcore2",
    "httpx2",
    "mcp",
    "openai",
    "python_multipart",
)


def keep_content_out_of_logs() -> None:
    """Raise those loggers to INFO if the root logger has a lower level."""
    for name in WITH_CONTENT:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))
