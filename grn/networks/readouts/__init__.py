"""The read-outs: one a file, each named by what it reads, and the two ways of averaging over cells that they share."""
