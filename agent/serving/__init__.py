"""What the web server stands on besides the page; `agent.server` puts it together."""
