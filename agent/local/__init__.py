"""Model servers that this machine starts itself: llama.cpp, vLLM, and their weights."""
