import mindspore as ms
from mindspore import ops as ops_

ops = ["add", "mul"]
port = 29500


def run(x):
    return ops_.relu(x), ops_.stack([x, x]), len(ops), ops_.randn(port)
