"""Benchmarks that a reader can run again, and the demonstration."""
