"""The monoids of the table, a family a file."""
