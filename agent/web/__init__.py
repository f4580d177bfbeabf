"""The web application and its server. `agent.web.app` builds it, and `agent.web.server` serves it."""
