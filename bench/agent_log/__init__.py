"""A log of an agent's requests as they come from real clients: with everything that breaks a prefix cache."""
