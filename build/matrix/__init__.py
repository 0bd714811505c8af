"""matrix.yaml: what is built. `load_matrix()` gives the validated Matrix; `select()` picks names by glob."""
