"""Set-up of a machine: the project's environment `.venv`, Docker's engine, packs for machines without a network.

`bootstrap.py` and all that it imports use the standard library alone: they run before anything is installed.
"""
