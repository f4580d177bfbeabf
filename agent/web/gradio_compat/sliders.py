"""Lets a slider hand on what was typed into it. Gradio would raise an error for a value beyond its ends.

Its page corrects such a value itself, but only after the first event with it, so that the error was shown in English.
"""

import gradio as gr


def hand_on_values() -> None:
    """Patch the sliders. Their handlers clip the values."""

    def preprocess(self: gr.Slider, payload: float) -> float:  # named as the method, so that it needs no thread
        return payload

    gr.Slider.preprocess = preprocess
