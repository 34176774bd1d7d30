"""State on disk: the scaler, float32 weights, and the neutral form of both."""
