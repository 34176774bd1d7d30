"""A training loop of torch as MindSpore's own guide writes it: recognised, described, written."""
