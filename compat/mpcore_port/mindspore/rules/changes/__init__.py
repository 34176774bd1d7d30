"""Tensors that are changed in place, and who else holds them."""
