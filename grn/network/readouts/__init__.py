"""The read-outs, one a file, each named by what it reads."""
