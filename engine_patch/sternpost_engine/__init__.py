"""Lets vLLM reuse the KV of a prompt's fixed tail after any middle, without a change to vLLM itself."""
