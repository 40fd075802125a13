"""Cells with a planted network, and what interventions do to them."""
