"""The report of a comparison: table, JSON and page."""
