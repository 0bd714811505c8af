"""What the facts mean: pure functions from what the programs printed to verdicts."""
