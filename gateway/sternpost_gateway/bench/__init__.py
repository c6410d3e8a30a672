"""
Measuring endpoints of OpenAI's API: the same requests to each, interleaved, with what came of them.

    agents     requests of agents with everything that breaks a prefix cache, made by a seed
    texts      sentences made by a seed
    stats      percentiles, bootstrap intervals, agreement; pure
    machine    what this ran on
"""
