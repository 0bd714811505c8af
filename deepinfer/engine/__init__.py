"""Requests through the model: sequences, batches, results."""
