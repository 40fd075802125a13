"""What cells say of edges: states, exact solutions and their penalties, knock-offs and q-values,
effects and their sizes, what interventions caused, and priors."""
