"""What differs between two conditions."""
