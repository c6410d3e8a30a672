"""How fast the kill switch is by each of its ways, on a real API server and under load: `make bench-kill`."""
