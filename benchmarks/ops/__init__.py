"""How fast the kernels are: `python -m benchmarks.ops --help`, from the project's root.

`entries` says what is measured, `timing` measures calls, `column` is the process of one implementation, `results`
and `table` make something of the rows.
"""
