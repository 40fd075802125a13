"""The command line: one module for each command of `grn`, and what they share."""
