"""Networks and models as files for other programs."""
