"""Where the time of a step goes: `python -m benchmarks.step --help`, from the project's root.

`layers` cuts the model to what a device holds, `setting` makes it with warm caches, `record` takes a forward apart
into kernels' calls, `floors` says what each cannot do without, `measure` times them, `table` shows it.
"""
