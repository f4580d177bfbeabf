"""ASGI middleware between the network and the page."""
