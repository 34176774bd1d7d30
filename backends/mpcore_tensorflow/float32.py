"""What float32 means to the products of a device: IEEE, or fewer bits of mantissa."""

from __future__ import annotations

import tensorflow as tf

__all__ = ["set_float32"]


def set_float32(meaning: str) -> str:
    """Say what a float32 product is in this process; return what it was, in the same words.

    TensorFlow has one switch for all models. It is of use on GPUs with TF32 alone, where it is
    on from the start; that has not been run here.

    Args:
        meaning: ``"strict"`` for IEEE float32, ``"fast"`` for TF32, ``"native"`` to leave it.

    Source: tensorflow/python/framework/config.py of TensorFlow 2.21,
    ``enable_tensor_float_32_execution``.
    """
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    if meaning != "native":
        tf.config.experimental.enable_tensor_float_32_execution(meaning == "fast")
    return "fast" if before else "strict"
