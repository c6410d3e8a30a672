"""`/sternpost/ui`: the figures of `sternpost top` for one gateway, as a page for a browser."""
