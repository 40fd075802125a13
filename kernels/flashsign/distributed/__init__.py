"""Gene parallelism: attention over bags whose genes are split over the processes of a group."""
