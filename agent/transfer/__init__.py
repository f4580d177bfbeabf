"""Export and import of conversations: values in, values out. Knows the history and the files, no web page."""
