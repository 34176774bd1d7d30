"""Stubs that let scripts for CUDA and for Ascend run on a CPU, to compare their training."""
