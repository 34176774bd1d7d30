"""Policies: rules, their text, presets, and the plan that a policy becomes for a model."""
