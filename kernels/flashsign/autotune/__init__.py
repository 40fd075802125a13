"""The search for faster block sizes than the tables hold: `python -m flashsign.autotune`."""
