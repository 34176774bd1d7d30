"""Packed sequences, as torch.nn.utils.rnn has them, and the recurrent layers that take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mindspore import Tensor, nn, ops

from mpcore_port_runtime.ragged import pad_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "PackedSequence",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "unpack_sequence",
]


class PackedSequence(NamedTuple):
    """torch.nn.utils.rnn.PackedSequence: all first elements, then all second ones.

    Attributes:
        data: the elements, (all lengths together, ...).
        batch_sizes: for each time how many sequences go on.
        sorted_indices: the order by length; None where they came in it.
        unsorted_indices: the way back.
    """

    data: Any
    batch_sizes: Any = None
    sorted_indices: Any = None
    unsorted_indices: Any = None

    def to(self, *_: Any, **__: Any) -> PackedSequence:
        """Return itself: one process has one device."""
        return self

    def cpu(self) -> PackedSequence:
        """Return itself."""
        return self


def _host(values: Any) -> Any:
    return np.asarray(values.asnumpy() if isinstance(values, Tensor) else values, np.int64)


def _places(sizes: Any) -> tuple[Any, Any]:
    """Return the time and the sequence of each packed element."""
    times = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    return times, np.arange(len(times)) - starts


def _lengths(sizes: Any) -> Any:
    """Return how long each sequence is, the longest first."""
    return (np.arange(sizes[0])[:, None] < sizes[None]).sum(1)


def pack_padded_sequence(
    input: Any,  # torch's name
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """Return torch.nn.utils.rnn.pack_padded_sequence.

    Raises:
        RuntimeError: the lengths do not fit, or do not fall where they have to.
    """
    long = _host(lengths)
    order = None
    if enforce_sorted:
        if (np.diff(long) > 0).any():
            msg = "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True"
            raise RuntimeError(msg)
    else:
        order = np.argsort(-long, kind="stable")
        long = long[order]
    batch, most = input.shape[:2] if batch_first else input.shape[1::-1]
    if len(long) != batch or long[-1] <= 0 or long[0] > most:
        msg = f"`lengths` must be {batch} numbers from 1 to {most}, got {long.tolist()}"
        raise RuntimeError(msg)
    sizes = (long[:, None] > np.arange(long[0])).sum(0)
    times, rows = _places(sizes)
    rows = rows if order is None else order[rows]
    places = rows * most + times if batch_first else times * batch + rows
    data = ops.gather(input.reshape(-1, *input.shape[2:]), Tensor(places), 0)
    if order is None:
        return PackedSequence(data, Tensor(sizes))
    return PackedSequence(data, Tensor(sizes), Tensor(order), Tensor(np.argsort(order)))


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Any, Any]:
    """Return torch.nn.utils.rnn.pad_packed_sequence: the padded sequences, and their lengths.

    Raises:
        ValueError: ``total_length`` is less than the longest.
    """
    sizes = _host(sequence.batch_sizes)
    most = len(sizes) if total_length is None else total_length
    if most < len(sizes):
        msg = f"`total_length` must be at least {len(sizes)}, got {total_length}"
        raise ValueError(msg)
    long = _lengths(sizes)
    data = sequence.data
    places = np.full((most, sizes[0]), len(data))
    times, rows = _places(sizes)
    places[times, rows] = np.arange(len(data))
    if sequence.unsorted_indices is not None:
        back = _host(sequence.unsorted_indices)
        places, long = places[:, back], long[back]
    if batch_first:
        places = places.T
    rest = data.shape[1:]
    last = ops.full((1, *rest), padding_value, dtype=data.dtype)
    flat = ops.gather(ops.cat((data, last)), Tensor(places.reshape(-1)), 0)
    return flat.reshape(*places.shape, *rest), Tensor(long)


def pack_sequence(sequences: Sequence[Any], enforce_sorted: bool = True) -> PackedSequence:
    """Return torch.nn.utils.rnn.pack_sequence of tensors that need not be padded."""
    long = [one.shape[0] for one in sequences]
    return pack_padded_sequence(pad_sequence(sequences), long, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Any]:
    """Return torch.nn.utils.rnn.unpack_sequence: a list of tensors of their own lengths."""
    padded, long = pad_packed_sequence(packed_sequences, batch_first=True)
    return [one[: int(n)] for one, n in zip(padded, long.asnumpy(), strict=True)]


class _TakesPacked(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """A recurrent layer of MindSpore that takes packed sequences, too, and has torch's names."""

    def __getattr__(self, name: str) -> Any:
        """Return a Parameter by torch's name: ``weight_ih_l0``."""
        if name in ("all_weights", "_all_weights"):
            rows = self.__getattr__("_rows")
            return [[getattr(self, one) for one in row] for row in rows] if name[0] != "_" else rows
        if name == "_rows":
            kinds = ("weight_ih", "weight_hh") + ("bias_ih", "bias_hh") * self.has_bias
            ends = ("", "_reverse") if self.bidirectional else ("",)
            rows = [(layer, end) for layer in range(self.num_layers) for end in ends]
            return [[f"{kind}_l{layer}{end}" for kind in kinds] for layer, end in rows]
        if name.startswith(("weight_", "bias_")):
            for one in self.get_parameters():
                if one.name.rpartition(".")[2] == name:
                    return one
        return super().__getattr__(name)

    def construct(self, x: Any, hx: Any = None, seq_length: Any = None) -> Any:
        """Return the outputs, packed where ``x`` is, and the last state of each sequence."""
        if not isinstance(x, PackedSequence):
            return super().construct(x, hx, seq_length)
        in_order = PackedSequence(x.data, x.batch_sizes)
        padded, long = pad_packed_sequence(in_order, batch_first=self.batch_first)
        if hx is not None and x.sorted_indices is not None:
            hx = _reordered(hx, x.sorted_indices)
        out, state = super().construct(padded, hx, long.int())
        if x.unsorted_indices is not None:
            state = _reordered(state, x.unsorted_indices)
        data = pack_padded_sequence(out, long, batch_first=self.batch_first).data
        return PackedSequence(data, *x[1:]), state


def _reordered(state: Any, order: Any) -> Any:
    """Return a state (layers, batch, ...), or a pair of them, with sequences in another order."""
    if isinstance(state, tuple | list):
        return tuple(_reordered(part, order) for part in state)
    return ops.gather(state, order, 1)


class LSTM(_TakesPacked, nn.LSTM):  # type: ignore[misc]
    """torch.nn.LSTM, of packed sequences as well."""


class GRU(_TakesPacked, nn.GRU):  # type: ignore[misc]
    """torch.nn.GRU, of packed sequences as well."""


class RNN(_TakesPacked, nn.RNN):  # type: ignore[misc]
    """torch.nn.RNN, of packed sequences as well."""
