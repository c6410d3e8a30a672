"""`sternpost top`: what gateways do right now, from their /metrics."""
