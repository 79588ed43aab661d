"""Programs that run inside a peer's interpreter: the standard library and what that peer brings, nothing else."""
