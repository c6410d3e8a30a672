"""
`make bench-quality`: does a reused tail change the answers? Measured through the real engine.

    __main__   the flags; runs or goes on, then writes the results and says which bounds hold
    tasks      prompts with known answers, from data files
    arms       how a prompt's KV comes about: exact, from another middle, from means
    teacher    all arms are given the exact answer, token by token
    processor  the same as vLLM's logits processor, loaded by the engine alone
    asking     one prompt asked in one arm; what is recorded of it
    passes     the engines, one after another, and what is asked of each
    fidelity   KL and top-1 agreement from log-probabilities; pure
    accuracy   answers chosen among candidates, Wilson intervals, flips and their sign test; pure
    summary    all records as figures, and the bounds; pure
    report     the figures as Markdown
"""
