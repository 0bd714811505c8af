"""The compiled part's twin in Python: same names, arguments, results and error types, used where `_C` is not."""
