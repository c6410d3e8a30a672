"""
`make demo`: Sternpost on this machine, measured against plain vLLM prefix caching on the same engines.

    __main__   the flags; runs everything, writes the report and says whether the demonstration holds
    show       everything that is done with the running stack, in order
    workload   a support agent's rules, 40 customers' questions, the order they are asked in
    stack      `sternpost up` as a child process
    client     one streamed request, as a user of the `openai` package makes it
    rows       what one request showed
    measure    warm-up, then every question once to each arm
    kill       the kill switch while clients keep asking
    summary    what all rows together show, and the conditions they must meet; pure
    report     the table, the rows and the results as files
    plot       the picture
    progress   lines with the time that has passed
"""
