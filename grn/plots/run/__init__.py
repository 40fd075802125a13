"""Pictures of a run: how training went, and what was scored."""
