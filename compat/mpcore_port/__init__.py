"""The porter: PyTorch mixed-precision scripts to Ascend, with a reason for every edit.

``mpcore port PATH --to torch_npu -o OUT`` from a shell; ``port`` from Python. Scripts are read,
never run: only ``--verify`` runs them.
"""
