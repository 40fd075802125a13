"""What is done with a trained model: predictions for cells, evaluation of networks, reports."""
