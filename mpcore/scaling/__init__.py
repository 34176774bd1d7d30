"""The loss scale: its rule, its state, the one transition, and the presets."""
