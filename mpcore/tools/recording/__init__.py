"""Runs of training scripts as they are: recorded in sketches, and compared afterwards."""

from mpcore.tools.recording.record import Recording, record

__all__ = ["Recording", "record"]
