"""Classes of networks: their settings, modes, parts and checkpoints."""
