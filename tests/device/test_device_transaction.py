"""The transaction with all its options, on a device: the tests of tests/backends."""

from __future__ import annotations

from test_transaction import *  # noqa: F403
