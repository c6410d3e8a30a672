"""
The engine patch: vLLM, unmodified, plus this plugin, which reuses a fixed tail's KV after any middle.

The modules without torch or vLLM (`keys`, `index`, `operations`, `planner`) decide; `worker`, `rotary` and
`tensors` move KV; `connector`, `scheduler`, `reporting`, `endpoint` and `plugin` are thin adapters to vLLM.
"""
