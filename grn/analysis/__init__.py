"""Uses of a trained model: predictions for cells, evaluation of networks, reports."""
