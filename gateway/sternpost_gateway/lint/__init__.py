"""`sternpost lint`: what in a log of requests breaks the prefix cache, what it costs, and what would help."""
