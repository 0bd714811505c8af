"""The target `host`: the same components compiled against this machine's torch, into a prefix of its own."""
