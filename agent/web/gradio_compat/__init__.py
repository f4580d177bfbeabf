"""All code that reaches behind Gradio's public API."""
