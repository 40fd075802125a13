"""What a run can set: the schema with every default, and the files that it is read from."""
