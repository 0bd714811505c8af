"""The program that looks into a base: standard library only, from Python 3.8 on, for it runs with the base's Python.

It travels as one zip file (build/bases/inspect.py), which Python runs as it is.
"""
