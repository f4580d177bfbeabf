"""Everything that reaches behind Gradio's public API. No other module uses a name that Gradio does not export.

Each module says why it does so. `tests/web/test_gradio_names.py` fails if Gradio has moved a name, and
`tests/web/test_gradio_compat.py` if Gradio works differently or no longer needs a workaround.
"""
