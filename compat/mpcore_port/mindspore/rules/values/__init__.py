"""Methods, attributes and parts of tensors."""
