"""MindSpore's optimizers by their neutral constants, and what their states are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import Parameter, nn, ops

if TYPE_CHECKING:
    from mpcore.backend.driver import OptimizerSpec

__all__ = ["optimizer_of", "slot_names"]

_SLOTS = {
    "moments": "momentum",
    "moment": "momentum",  # RMSProp
    "moment1": "exp_avg",
    "moment2": "exp_avg_sq",
    "ms": "square_avg",
    "accum": "square_sum",
}


class Adam(nn.Adam):  # type: ignore[misc]  # mindspore has no types
    """Adam that adds eps to the corrected root, as torch does: equal settings move equally.

    MindSpore adds it before: the same eps is larger there by 1 / sqrt(1 - beta2**step).
    """

    def __init__(self, params: Any, rate: float, **constants: Any) -> None:
        """Let eps change from step to step."""
        super().__init__(params, rate, **constants)
        self._eps_given = float(constants["eps"])
        self.eps: Any = Parameter(self.eps, name="eps", requires_grad=False)

    def decay_weight(self, gradients: Any) -> Any:
        """Place eps; the first thing that ``nn.Adam.construct`` calls.

        Not in a ``construct`` of its own: ``nn.Adam``'s is compiled under that name, so that the
        one of a subclass would run twice (mindspore 2.10.0).
        """
        self.place_eps()
        return super().decay_weight(gradients)

    def place_eps(self) -> None:
        """Let eps be that of the step to come."""
        left = 1 - self.beta2_power * self.beta2
        ops.assign(self.eps, self._eps_given * ops.sqrt(left).reshape(self.eps.shape))


class AdamW(Adam):
    """Adam, with a share of each weight taken off before.

    MindSpore's AdamWeightDecay is another formula: it does not correct the bias of its averages.
    """

    def __init__(self, params: Any, rate: float, decay: float, **constants: Any) -> None:
        """Keep the decay out of the gradients."""
        super().__init__(params, rate, **constants)
        self._taken_off = decay

    def decay_weight(self, gradients: Any) -> Any:
        """Take off the share."""
        self.place_eps()  # no super(): a graph finds none from a subclass of a subclass
        kept = 1 - self.get_lr() * self._taken_off
        for param in self._parameters:
            ops.assign(param, param * kept)
        return gradients


def optimizer_of(spec: OptimizerSpec, params: Any) -> Any:
    """Return MindSpore's own optimizer over ``params``."""
    rate, decay = spec.learning_rate, float(spec.weight_decay)
    if spec.nesterov:  # nn.Momentum's is another formula (mindspore 2.10.0)
        return nn.SGD(params, rate, float(spec.momentum), weight_decay=decay, nesterov=True)
    if spec.name == "sgd":
        return nn.Momentum(params, rate, float(spec.momentum), decay)
    if spec.name == "rmsprop":
        found = nn.RMSProp(
            params,
            rate,
            decay=spec.betas[1],
            momentum=float(spec.momentum),
            # Under the root, not beside it: its square is the same for gradients above and below.
            epsilon=spec.eps**2,
            weight_decay=decay,
        )
        for average in found.ms:  # which begins at 1
            ops.assign(average, ops.zeros_like(average))
        return found
    if spec.name == "adagrad":
        return nn.Adagrad(params, accum=0.1, learning_rate=rate, weight_decay=decay)
    constants = {"beta1": spec.betas[0], "beta2": spec.betas[1], "eps": spec.eps}
    if spec.name == "adamax":
        return nn.AdaMax(params, rate, weight_decay=decay, **constants)
    if spec.name == "adamw":
        return AdamW(params, rate, decay, **constants)
    return Adam(params, rate, weight_decay=decay, **constants)


def slot_names(optimizer: Any) -> dict[str, str]:
    """Return the neutral name of each state of an optimizer, by its attribute."""
    special = {}
    if isinstance(optimizer, nn.AdaMax):
        special = {"moment2": "exp_inf"}
    elif isinstance(optimizer, nn.SGD):
        special = {"accum": "momentum"}
    names = {own: neutral for own, neutral in _SLOTS.items() if hasattr(optimizer, own)}
    return names | special
