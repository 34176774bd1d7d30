"""One step as a transaction, and the record of what it did."""
