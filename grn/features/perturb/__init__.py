"""What changes where regulators are knocked out or overexpressed."""
