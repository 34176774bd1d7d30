"""What a backend can do on this machine: known, cached, or measured."""
