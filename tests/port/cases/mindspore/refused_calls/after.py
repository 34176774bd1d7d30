import mindspore as ms
from mindspore import nn


# mpcore port: keep
class _mpcore_refused:
    """Stands where the port has no equivalent; raises, with the reason, as soon as it is used."""

    def __init__(self, reason):
        self.__dict__["reason"] = reason

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(self.__dict__["reason"])

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(self.reason)


def odd(x, weights):
    # mpcore port: refused: torch.median: the middle of all elements has no equal in MindSpore: use ops.median(x.reshape(-1))
    middle = _mpcore_refused("torch.median: the middle of all elements has no equal in MindSpore: use ops.median(x.reshape(-1))")(x)
    # mpcore port: refused: torch.jit.script: use ms.jit on the function, or remove the decorator
    fast = _mpcore_refused("torch.jit.script: use ms.jit on the function, or remove the decorator")(nn.Dense(2, 2))
    # mpcore port: refused: x.add_: in-place operations change nothing in MindSpore's eager mode on CPU; write x = x.add(...), or ops.assign on a Parameter
    _mpcore_refused("x.add_: in-place operations change nothing in MindSpore's eager mode on CPU; write x = x.add(...), or ops.assign on a Parameter")(1)
    # mpcore port: refused: nn.Softmax: `dim` of torch.nn.Softmax: torch guesses the axis from the rank of the input; write dim=
    pooled = _mpcore_refused("nn.Softmax: `dim` of torch.nn.Softmax: torch guesses the axis from the rank of the input; write dim=")()(x)
    return middle, fast, pooled
