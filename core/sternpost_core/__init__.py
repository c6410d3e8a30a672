"""What every part of Sternpost agrees on, with the standard library alone."""

__version__ = "0.1.0"
