"""
`sternpost calibrate`: what reusing one tail on one model costs in fidelity, and what it saves.

The reference engine computes every held-out middle exactly, in float32 and in bfloat16, and then with the
tail's KV reused in many ways. The exact answers' difference between the two dtypes is the noise floor that
everything else is compared with: a reuse at that level changes no more than a dtype does.
"""
