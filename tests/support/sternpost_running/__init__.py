"""Real programs that tests start: a vLLM engine with the plugin."""
