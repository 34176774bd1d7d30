"""tf.keras backend of mpcore: Keras 3 models and optimizers on TensorFlow."""

from mpcore._lib.machine import spare_onednn
from mpcore_tensorflow.amp import KerasAmp
from mpcore_tensorflow.ascend import EmulatedAscend, emulated_ascend
from mpcore_tensorflow.backend import TensorflowBackend
from mpcore_tensorflow.optimizer import TransactionalOptimizer

__all__ = [
    "EmulatedAscend",
    "KerasAmp",
    "TensorflowBackend",
    "TransactionalOptimizer",
    "emulated_ascend",
]

spare_onednn()  # before the first product of two matrices: oneDNN asks once
