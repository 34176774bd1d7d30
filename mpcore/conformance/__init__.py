"""The tests that every backend passes, for this repository's and for anyone's.

``python -m mpcore.conformance NAME`` runs them on the backend ``NAME``; needs pytest.
"""
