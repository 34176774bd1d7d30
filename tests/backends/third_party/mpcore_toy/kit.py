"""The toy in the conformance suite: the reference's kit with the toy's own model."""

from __future__ import annotations

import numpy as np

from mpcore_numpy.kit import NumpyKit, dtype_of, loss_and_gradients
from mpcore_toy import Model


class ToyKit(NumpyKit):
    name = "toy"

    def model(self):
        made = super().model()
        return Model(made.layers, made.params, made.buffers)

    def layer_dtypes(self, model, amp, x):
        seen = {}

        def cast(path, value):
            found = amp._tx.cast(path, value)
            seen[path] = dtype_of(found, amp._tx.compute[path])
            return found

        batch = (x, np.zeros(len(x), int), 1)
        loss_and_gradients(model.params, dict(model.buffers), cast, np.float32(1), *batch)
        return seen


kit = ToyKit()
