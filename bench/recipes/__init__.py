"""
Which recipe keeps answers right: correction, last tokens and matched words, searched by the reference engine.

`bench.quality` holds a few recipes to their bounds on the real engine. This searches many, on other tasks, at
a fraction of the cost: a prompt is computed once, and each recipe adds only what it computes afresh.

    recipes    what is compared
    workbench  one task's prompts, computed by the reference engine
    summary    records as figures
    data/      tasks, in the form that `bench.quality.tasks` reads
"""
