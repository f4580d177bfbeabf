"""Code that uses private names of Gradio: import hook, queue, memory, application. (`web/shutdown.py` does, too.)"""
