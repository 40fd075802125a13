"""What is known of an edge besides its weight: how sure it is, and what interventions caused."""
