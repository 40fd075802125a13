"""A network judged against a reference, by the rules of BEELINE."""
