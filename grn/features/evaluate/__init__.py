"""Networks beside references: scores, ridge and Pearson beside them."""
