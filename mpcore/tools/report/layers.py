"""One step of two runs as values, layer by layer: a part of a comparison's result."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Distance", "Divergence", "Float64", "LayerDistance", "Layers", "RootCause"]


@dataclass(frozen=True)
class Distance:
    """How far one tensor lies from that of the reference.

    Attributes:
        relative: L2 distance over the L2 norm of the reference's.
        cosine: of the angle between the two.
        largest: largest relative difference of one value.
        off: share of values that differ by more than 0.1 %, in [0, 1].
        ulp: largest distance in units in the last place of float32.
        tolerance: relative difference that noise explains.
        beyond: whether noise does not explain it.
    """

    relative: float
    cosine: float
    largest: float
    off: float
    ulp: float
    tolerance: float
    beyond: bool


@dataclass(frozen=True)
class LayerDistance:
    """One layer, or one op inside of a layer.

    Attributes:
        path: in the reference.
        own_path: in the other run; empty where it has none.
        type: class names.
        category: neutral category.
        output: of the forward pass; null where there was nothing to compare.
        grad: gradient of what came in.
        param_grad: gradient of its parameters.
        update: what the step changed in its parameters.
    """

    path: str
    own_path: str = ""
    type: str = ""
    category: str = ""
    output: Distance | None = None
    grad: Distance | None = None
    param_grad: Distance | None = None
    update: Distance | None = None


@dataclass(frozen=True)
class Divergence:
    """Where two runs diverge first.

    Attributes:
        phase: input, forward, loss, backward, update or scaler.
        layer: path in the reference, or a word in brackets where it is no layer.
        own_layer: path in the other run.
        relative: relative distance there; 0 where settings differ and numbers do not.
        tolerance: what noise explains there.
    """

    phase: str
    layer: str
    own_layer: str
    relative: float = 0.0
    tolerance: float = 0.0


@dataclass(frozen=True)
class RootCause:
    """Why two runs diverge.

    Attributes:
        kind: such as eps, dtype rule, or unknown.
        layer: path in the reference, or a word in brackets where it is no layer.
        own_layer: path in the other run.
        phase: as of the divergence.
        evidence: sentences with numbers.
        fix: what to change, in one line.
        confidence: sure, likely or possible; empty where nothing explains it.
    """

    kind: str
    layer: str
    own_layer: str
    phase: str
    evidence: tuple[str, ...] = ()
    fix: str = ""
    confidence: str = ""


@dataclass(frozen=True)
class Float64:
    """The same step in float64, beside both.

    Attributes:
        wrong: a, b, both or neither lies beyond its tolerance; empty if it was not run.
        why: that in words, or why it was not run.
    """

    wrong: str
    why: str


@dataclass(frozen=True)
class Layers:
    """One step of two runs, layer by layer.

    Attributes:
        verdict: same, or different, too noisy to tell, or not looked at, each with its reason.
        rows: in forward order.
        first: where they diverge first; null if they do not.
        root_causes: best first.
        how: how it was measured.
        ops: inside of the layer where they diverge.
        exact: the same step in float64.
    """

    verdict: str
    rows: tuple[LayerDistance, ...] = ()
    first: Divergence | None = None
    root_causes: tuple[RootCause, ...] = ()
    how: str = ""
    ops: tuple[LayerDistance, ...] = ()
    exact: Float64 | None = None
