"""Pictures of networks: one a file."""
