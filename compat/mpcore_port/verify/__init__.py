"""Run a script and its port side by side, and compare their training; this runs the user's code."""
