"""What a trained model expects when regulators are knocked out, knocked down or overexpressed."""
