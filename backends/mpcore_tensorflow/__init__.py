"""tf.keras backend of mpcore: Keras 3 models and optimizers on TensorFlow."""

from mpcore_tensorflow.backend import TensorflowBackend
from mpcore_tensorflow.optimizer import TransactionalOptimizer
from mpcore_tensorflow.step import KerasAmp

__all__ = ["KerasAmp", "TensorflowBackend", "TransactionalOptimizer"]
