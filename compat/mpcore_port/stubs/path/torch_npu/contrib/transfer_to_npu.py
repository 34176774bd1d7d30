"""Stub for torch_npu's automatic migration: importing it maps CUDA's names."""

from mpcore_port.stubs.devices import migrate

migrate()
