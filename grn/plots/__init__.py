"""Pictures: each function takes data frames and returns a matplotlib Figure. No pyplot, nothing global."""
