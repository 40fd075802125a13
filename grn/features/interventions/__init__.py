"""How well interventions are predicted."""
