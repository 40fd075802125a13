"""What is asked of a finished run, or of a network, from Python: one question a file."""
