"""What a run found, in tables and sentences, for the terminal and for the report."""
