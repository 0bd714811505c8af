"""What the engine keeps between forwards: compressed entries in paged blocks, a state slot a sequence, known prefixes.

`layout` says which byte lies where, `pool` holds the memory, `prefix` finds what was computed before.
"""
