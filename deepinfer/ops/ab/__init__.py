"""The same cases on two backends, compared element by element: `python -m deepinfer.ops.ab --help`."""
