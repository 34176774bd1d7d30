"""Readers and writers of the frameworks' own policies and scaler states."""
