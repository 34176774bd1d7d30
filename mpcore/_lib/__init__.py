"""Helpers that know nothing of mixed precision: processes, versions, sizes, files."""
