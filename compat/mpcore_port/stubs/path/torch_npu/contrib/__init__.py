"""Stub for torch_npu.contrib: what lets a program for CUDA run on an NPU as it is."""
