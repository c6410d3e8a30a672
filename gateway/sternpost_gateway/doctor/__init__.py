"""`sternpost doctor`: where predicted, reported and timed reuse part."""
