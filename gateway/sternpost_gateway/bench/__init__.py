"""
`sternpost bench`: the same requests to several endpoints of OpenAI's API, interleaved, and what came of them.

    command    the flags; runs, compares, lists
    order      what the command line asks for, as values
    workload   calls, sessions, arrivals: values
    makers     the shapes of workloads, made by a seed
    recipes    workloads as files; `data/workloads.json` holds the built-in ones
    agents     requests of agents with everything that breaks a prefix cache, made by a seed
    texts      sentences made by a seed
    replay     a user's own log, or a trace
    target     where requests go
    client     one streamed request
    arrivals   when sessions begin
    watching   what engines' metrics say meanwhile
    procedure  warm-ups, then each target's sessions, or each session at all targets, in changing order
    sample     what a request, and a unit of them, showed
    records    a run's file
    stats      percentiles, bootstrap intervals, agreement; pure
    summary    figures and ratios; pure
    report     Markdown
    plot       the picture
    compare    two runs beside each other
    machine    what this ran on
    progress   a bar, or lines
"""
