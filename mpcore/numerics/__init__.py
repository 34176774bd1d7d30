"""Number formats, the op table, the arithmetic of master weights, overflow detectors."""
