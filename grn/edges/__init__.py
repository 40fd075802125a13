"""Networks in every form that needs no model: matrices of weights, tables of edges, network.h5ad,
and the files of other programs."""
