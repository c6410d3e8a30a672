"""
`make bench-engine`: plain vLLM and vLLM with the plugin, side by side on the same requests.

    __main__   the flags; runs or goes on, then writes the results and prints which bounds hold
    scenarios  what is asked: who speaks in which order, what is fixed, what is measured
    asking     one streamed request, and what it showed
    batches     both engines run, batch by batch, in turn
    memory     what an engine's processes hold
    summary    all batches as figures, and the bounds beside the founding article's figures; pure
    report     the figures as Markdown
"""
