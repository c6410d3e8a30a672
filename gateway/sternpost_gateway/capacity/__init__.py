"""
`sternpost plan`: how many engines a log's traffic takes with and without reuse, and what that costs.

    command    the flags
    demand     what the log's requests leave to compute, today and under a policy
    speed      how long an engine takes for a prompt, told or fitted to a bench's run
    queueing   how long requests wait for engines; a simulation
    sizing     the least engines that keep a promise, their memory and their price; pure
    report     the table
    plot       the picture
"""
