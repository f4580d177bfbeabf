"""Tools of models: functions, the built-in ones, REST services and MCP servers."""
