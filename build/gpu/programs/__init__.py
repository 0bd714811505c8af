"""Programs that run on the machine with the GPU. Each imports the standard library, torch and what it checks, and
prints one JSON object as its last line: {"ok": bool, "reason": str, "figures": {...}}; exit code 0 when ok, 5 if not.
"""
