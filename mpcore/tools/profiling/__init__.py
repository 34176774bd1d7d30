"""Where the time of a training step goes, and what another dtype would bring."""

__all__: list[str] = []
