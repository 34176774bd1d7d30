"""Losses: what they are made of, and the function that each becomes."""
