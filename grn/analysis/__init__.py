"""What a trained model says of cells, and reports of what it learned."""
