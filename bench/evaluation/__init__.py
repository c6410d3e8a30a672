"""
`make bench-evaluation`: plain vLLM, other routers and Sternpost before the same two engines and work.

    __main__   the flags; runs or goes on, then writes the results and prints which bounds hold
    scope      which workloads, how many sessions and repetitions: the quick run and the whole one
    peers      other routers, each pinned, in an environment of its own
    targets    what is compared, and how each is started
    units      engines and targets run, unit by unit, resumable
    claims     the bounds, and which figure each one is about; pure
    model      the planner's model beside what was measured; pure
"""
