"""The same cases on two sides, compared element by element: `python -m deepinfer.ops.ab --help`.

A side is a backend of ours in this process (`sides.Here`), what a dump holds (`sides.Dumped`; `portable` is the
format), or a module of somebody else's in a process of its own (`outside`), with which dumps are exchanged.
"""
