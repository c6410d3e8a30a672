"""
`sternpost up`: engines and a gateway on one machine, as child processes of one program in the foreground.

    command      the flags; puts the rest together
    settings     what a person asks for, and the child processes that follow from it
    folders      state folder, admin token, default policies
    checks       what must hold before anything starts: free ports, enough memory
    child        what is known of one child process, and how that changes
    decide       what to do next; a pure function
    process      one child process behind its guard
    guard        the program between `up` and each child, so that none outlives it
    probe        asks children whether they are well
    progress     what a person sees
    supervisor   gathers, decides, acts, until told to stop
"""
