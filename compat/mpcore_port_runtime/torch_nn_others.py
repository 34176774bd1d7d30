"""The rest of ``torch_nn``: recurrent layers, an embedding, plain activations and losses."""

from __future__ import annotations

from typing import Any

from mindspore import nn
from mindspore.common.initializer import Normal

from mpcore_port_runtime import layers, losses, packed
from mpcore_port_runtime.refusal import only

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "Embedding",
    "Identity",
    "L1Loss",
    "MSELoss",
    "NLLLoss",
    "Sigmoid",
    "SmoothL1Loss",
    "Softplus",
    "Tanh",
]


def _recurrent(make: Any, *sizes: int, bias: bool, dropout: float, **more: Any) -> Any:
    return make(*sizes, has_bias=bias, dropout=float(dropout), **more).set_train()


def LSTM(  # noqa: N802  # torch's names, here and below
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0.0,
    bidirectional: bool = False,
    proj_size: int = 0,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.LSTM."""
    only("proj_size", proj_size, 0)
    return _recurrent(
        packed.LSTM,
        *(input_size, hidden_size, num_layers),
        bias=bias,
        batch_first=batch_first,
        dropout=dropout,
        bidirectional=bidirectional,
    )


def GRU(  # noqa: N802
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0.0,
    bidirectional: bool = False,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.GRU."""
    return _recurrent(
        packed.GRU,
        *(input_size, hidden_size, num_layers),
        bias=bias,
        batch_first=batch_first,
        dropout=dropout,
        bidirectional=bidirectional,
    )


def RNN(  # noqa: N802
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    nonlinearity: str = "tanh",
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0.0,
    bidirectional: bool = False,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.RNN."""
    return _recurrent(
        packed.RNN,
        *(input_size, hidden_size, num_layers),
        nonlinearity=nonlinearity,
        bias=bias,
        batch_first=batch_first,
        dropout=dropout,
        bidirectional=bidirectional,
    )


def Embedding(  # noqa: N802
    num_embeddings: int,
    embedding_dim: int,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    _weight: Any = None,
    _freeze: bool = False,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.Embedding."""
    only("max_norm", max_norm, None)
    only("scale_grad_by_freq", scale_grad_by_freq, False)
    only("sparse", sparse, False)
    only("_weight", _weight, None)
    only("_freeze", _freeze, False)
    given = {"embedding_table": Normal(1.0), "padding_idx": padding_idx}
    return layers.Embedding(num_embeddings, embedding_dim, **given)


def Identity(*_: Any, **__: Any) -> Any:  # noqa: N802
    """Return torch.nn.Identity."""
    return nn.Identity()


def Sigmoid() -> Any:  # noqa: N802
    """Return torch.nn.Sigmoid."""
    return nn.Sigmoid()


def Tanh() -> Any:  # noqa: N802
    """Return torch.nn.Tanh."""
    return nn.Tanh()


def Softplus(beta: float = 1.0, threshold: float = 20.0) -> Any:  # noqa: N802
    """Return torch.nn.Softplus."""
    return layers.Softplus(beta, threshold)


# --- losses: what older torch took in place of `reduction` has to stay away -----------------------


def CrossEntropyLoss(  # noqa: N802
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return torch.nn.CrossEntropyLoss."""
    _older(size_average, reduce)
    return layers.CrossEntropyLoss(
        weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


def NLLLoss(  # noqa: N802
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Return torch.nn.NLLLoss."""
    _older(size_average, reduce)
    return layers.NLLLoss(weight, ignore_index=ignore_index, reduction=reduction)


def MSELoss(size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Any:  # noqa: N802
    """Return torch.nn.MSELoss."""
    _older(size_average, reduce)
    return nn.MSELoss(reduction=reduction)


def L1Loss(size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Any:  # noqa: N802
    """Return torch.nn.L1Loss."""
    _older(size_average, reduce)
    return nn.L1Loss(reduction=reduction)


def SmoothL1Loss(  # noqa: N802
    size_average: Any = None, reduce: Any = None, reduction: str = "mean", beta: float = 1.0
) -> Any:
    """Return torch.nn.SmoothL1Loss."""
    _older(size_average, reduce)
    return nn.SmoothL1Loss(beta=float(beta), reduction=reduction)


def BCELoss(  # noqa: N802
    weight: Any = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Any:
    """Return torch.nn.BCELoss."""
    _older(size_average, reduce)
    return nn.BCELoss(weight, reduction=reduction)


def BCEWithLogitsLoss(  # noqa: N802
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """Return torch.nn.BCEWithLogitsLoss."""
    _older(size_average, reduce)
    return losses.BCEWithLogitsLoss(weight, reduction, pos_weight)


def _older(size_average: Any, reduce: Any) -> None:
    only("size_average", size_average, None)
    only("reduce", reduce, None)
