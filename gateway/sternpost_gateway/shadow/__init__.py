"""Shadow replays: whether answers on reused KV are those that the exact path gives, and what follows."""
