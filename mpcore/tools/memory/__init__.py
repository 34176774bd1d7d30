"""Bytes of a training step: estimated for a policy, fitted to a budget."""
