"""The porter: PyTorch mixed-precision scripts to Ascend, site by site, with a reason for each.

``mpcore port PATH --to torch_npu -o OUT`` from a shell; ``port`` from Python. Scripts are read,
never run: only ``--verify`` runs them.
"""
