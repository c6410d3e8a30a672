"""The proxy that makes prompts stable and sends each where its KV is."""
