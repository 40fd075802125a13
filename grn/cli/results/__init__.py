"""Commands that read a finished run, or a network: one a file."""
