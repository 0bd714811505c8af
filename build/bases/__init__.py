"""Bases: finding or making one, and looking into it."""
