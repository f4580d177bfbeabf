"""What the web server stands on besides the page; `agent.web.server` puts it together."""
