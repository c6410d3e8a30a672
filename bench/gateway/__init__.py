"""What a hop through the gateway costs, beside other gateways, in front of one fast mock engine."""
