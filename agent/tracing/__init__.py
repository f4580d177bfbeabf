"""Records of runs: written without keys, read back, replayed, and exported as OpenTelemetry spans."""
