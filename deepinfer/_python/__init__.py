"""The compiled part's twin in Python: same names, arguments, results and error types, used where `_C` is not."""

from deepinfer._python import engine, graph_timer

__all__ = ["engine", "graph_timer"]
