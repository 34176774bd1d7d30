"""Optimizers: their groups, those of a script's own, and classes around them."""
