"""
Configuration and engines from the Kubernetes API server, without the operator in between.

Each gateway lists, watches and polls the objects itself, so that a kill level reaches it within a second with
nothing but the API server up, and it goes on with what it knew when even that is down.
"""
