"""Supervises engines and gateways: on Kubernetes as an operator, on one machine as `sternpost up`."""
