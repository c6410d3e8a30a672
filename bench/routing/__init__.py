"""How well routing finds what engines hold: mock engines with a cache, and other routers beside ours."""
