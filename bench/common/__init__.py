"""
What the benchmarks of the real engine have in common.

    engine_process   vLLM as a child process: started, waited for, ended
    engine_api       what is asked of a running engine: tokens, builds, answers, metrics
    tails            a fixed tail as an engine sees it
    store            results as JSON lines, so that a run that was cut short can go on
    results          rows, bounds and the result files that all benchmarks share
"""
