"""Everything that reaches behind Gradio's public API."""
