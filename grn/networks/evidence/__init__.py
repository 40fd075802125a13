"""What is known of an edge besides its weight: how sure it is, and how much of it goes through other regulators."""
