"""The op table against Keras and TensorFlow: names, lists, and what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mpcore.numerics import ops as table

keras = pytest.importorskip("keras", reason="keras is not installed")
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

from mpcore_tensorflow.layers import walk  # noqa: E402

pytestmark = pytest.mark.backend("tensorflow")

HEADER = "tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h"
CLASSES = {
    "tf_fp16_cuda": "class AutoMixedPrecisionListsFp16",
    "tf_bf16_onednn": "class AutoMixedPrecisionListsMkl",
}
METHODS = {"AllowList": "lower", "InferList": "infer", "DenyList": "full", "ClearList": "follow"}


def header_lists(cls: str) -> dict[str, set[str]]:
    """Return the lists of one class in TensorFlow's header, for the newest CUDA and cuDNN."""
    text = (Path(tf.sysconfig.get_include()) / HEADER).read_text(encoding="utf-8")
    (helper,) = re.findall(r"tensor_list_ops\[\] = \{(.*?)\};", text, re.S)
    body = text[text.index(cls) :]
    body = body[: body.index("\n};")]
    found = {}
    for method, word in METHODS.items():
        part = body[body.index(f"{method}()") :]
        part = part[: part.index("UpdateList")]
        # oneDNN's float16 is not in the table, nor is its part of the lists
        part = re.sub(r"if \(use_onednn_\) \{.*?\}", "", part, flags=re.S)
        names = set(re.findall(r'"(\w+)"', part))
        if "AddTensorListOps" in part:
            names |= set(re.findall(r'"(\w+)"', helper))
        found[word] = names
    return found


@pytest.mark.parametrize(("system", "cls"), CLASSES.items())
def test_grappler_lists_are_those_of_the_header(system: str, cls: str) -> None:
    ours = {word: set(names) for word, names in table.lists(system).items()}
    assert ours == header_lists(cls)


@pytest.mark.parametrize("row", [row for row in table.ops() if "tf" in row.names])
def test_op_types_exist(row: table.Op) -> None:
    listed = {n for s in CLASSES for names in table.lists(s).values() for n in names}
    for name in (*table.names(row, "tf"), *row.also.get("tf", ())):
        assert hasattr(tf.raw_ops, name) or name in listed, name


@pytest.mark.parametrize("row", [row for row in table.ops() if "keras" in row.names])
def test_names_exist(row: table.Op) -> None:
    for name in (*table.names(row, "keras"), *row.also.get("keras", ())):
        if name == "optimizer.variables":  # of any optimizer
            continue
        space, _, last = name.partition(".")
        assert callable(getattr(getattr(keras, space), last)), name


GROUPED = {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 2}
# Arguments, and the shapes that the layer is called on.
BUILT: tuple[tuple[str, dict, tuple], ...] = (
    ("Dense", {"units": 3}, ((2, 4),)),
    ("EinsumDense", {"equation": "ab,bc->ac", "output_shape": 3}, ((2, 4),)),
    ("Conv1DTranspose", {"filters": 2, "kernel_size": 2}, ((1, 6, 2),)),
    ("Conv2DTranspose", {"filters": 2, "kernel_size": 2}, ((1, 6, 6, 2),)),
    ("Conv3DTranspose", {"filters": 2, "kernel_size": 2}, ((1, 6, 6, 6, 2),)),
    ("Conv1D", {"filters": 2, "kernel_size": 2}, ((1, 6, 2),)),
    ("Conv2D", {"filters": 2, "kernel_size": 2}, ((1, 6, 6, 2),)),
    ("Conv3D", {"filters": 2, "kernel_size": 2}, ((1, 6, 6, 6, 2),)),
    ("DepthwiseConv1D", {"kernel_size": 2}, ((1, 6, 2),)),
    ("DepthwiseConv2D", {"kernel_size": 2}, ((1, 6, 6, 2),)),
    ("SeparableConv1D", {"filters": 2, "kernel_size": 2}, ((1, 6, 2),)),
    ("SeparableConv2D", {"filters": 2, "kernel_size": 2}, ((1, 6, 6, 2),)),
    ("MultiHeadAttention", {"num_heads": 2, "key_dim": 2}, ((1, 4, 4), (1, 4, 4))),
    ("GroupQueryAttention", GROUPED, ((1, 4, 4), (1, 4, 4))),
    ("Attention", {}, ("list", (1, 4, 4), (1, 4, 4))),
    ("AdditiveAttention", {}, ("list", (1, 4, 4), (1, 4, 4))),
    ("Dot", {"axes": 1}, ("list", (2, 4), (2, 4))),
    ("LSTMCell", {"units": 2}, ((2, 4), "states", (2, 2), (2, 2))),
    ("GRUCell", {"units": 2}, ((2, 4), "states", (2, 2))),
    ("SimpleRNNCell", {"units": 2}, ((2, 4), "states", (2, 2))),
    ("LSTM", {"units": 2}, ((1, 3, 4),)),
    ("GRU", {"units": 2}, ((1, 3, 4),)),
    ("SimpleRNN", {"units": 2}, ((1, 3, 4),)),
    ("Embedding", {"input_dim": 4, "output_dim": 2}, ((2, 4),)),
    ("GroupNormalization", {"groups": 2}, ((2, 4),)),
    ("Reshape", {"target_shape": (2, 2)}, ((2, 4),)),
    ("Permute", {"dims": (2, 1)}, ((1, 2, 3),)),
    ("Resizing", {"height": 4, "width": 4}, ((1, 6, 6, 2),)),
    ("STFTSpectrogram", {"frame_length": 4, "frame_step": 2, "fft_length": 4}, ((1, 16, 1),)),
    ("Activation", {"activation": "gelu"}, ((2, 4),)),
    ("Add", {}, ("list", (2, 4), (2, 4))),
    ("Subtract", {}, ("list", (2, 4), (2, 4))),
    ("Multiply", {}, ("list", (2, 4), (2, 4))),
    ("Concatenate", {}, ("list", (2, 4), (2, 4))),
    ("Dropout", {"rate": 0.5}, ((2, 4),)),
)  # fmt: skip
DIMENSIONS = {"1D": (1, 6, 2), "2D": (1, 6, 6, 2), "3D": (1, 6, 6, 6, 2)}
LAYERS = [
    (row.name, name.removeprefix("layers."))
    for row in table.ops()
    for name in (*table.names(row, "keras"), *row.also.get("keras", ()))
    if name.startswith("layers.")
]


NO_FLOAT16 = ("MaxPooling3D", "AveragePooling3D")  # TensorFlow's CPU build has no such kernel


def built(name: str):
    """Return the layer under a mixed policy and the shapes that it is called on."""
    policy = "mixed_bfloat16" if name in NO_FLOAT16 else "mixed_float16"
    cls = getattr(keras.layers, name)
    for known, arguments, shapes in BUILT:
        if name == known:
            return cls(**arguments, dtype=policy), shapes
    shape = DIMENSIONS.get(name[-2:], (2, 4))
    arguments = {"pool_size": 2} if name.startswith("AveragePooling") else {}
    return cls(**arguments, dtype=policy), (shape,)


def called(layer, shapes: tuple):
    given = [keras.ops.ones(shape) for shape in shapes if isinstance(shape, tuple)]
    if shapes[0] == "list":
        given[-1] = keras.ops.cast(given[-1], "float16")  # the other one is float32
        return layer(given)
    if "states" in shapes:
        out, _ = layer(given[0], given[1:])
        return out
    return layer(*given)


@pytest.mark.parametrize(("row", "name"), LAYERS)
def test_layers_put_out_what_the_table_says(row: str, name: str) -> None:
    layer, shapes = built(name)
    found = table.classify(row, "keras_mixed", f"layers.{name}")
    words = {"lower": layer.compute_dtype, "full": "float32"}
    assert _dtype(called(layer, shapes)) == words[found.output]


# What the adapter files apart from its op: merging and resampling move values about.
CATEGORY = {"Dot": "other", "Resizing": "other", "STFTSpectrogram": "other"}
MERGES = ("Add", "Subtract", "Multiply", "Concatenate", "UpSampling1D", "UpSampling2D")
CATEGORY |= dict.fromkeys((*MERGES, "UpSampling3D"), "reshape")


@pytest.mark.parametrize(("row", "name"), LAYERS)
def test_layers_have_the_category_that_the_row_says(row: str, name: str) -> None:
    layer, _ = built(name)
    model = keras.Model()
    model.layer = layer
    (_, entry) = walk(model)
    assert entry.category == CATEGORY.get(name, table.op(row).layer or "other")


NORMS = table.lists("keras_mixed")["full/lower"]


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_full_inside(name: str) -> None:
    """Values whose squares overflow float16 come out finite: the moments are float32."""
    layer, _ = built(name.removeprefix("layers."))
    x = keras.ops.convert_to_tensor(np.array([[300.0, -300.0, 500.0, 100.0]] * 2, np.float16))
    out = layer(x, training=True) if "Batch" in name else layer(x)
    assert keras.backend.standardize_dtype(out.dtype) == "float16"
    assert np.isfinite(np.asarray(out, np.float32)).all()
    naive = keras.ops.mean(keras.ops.square(x))
    assert not np.isfinite(np.asarray(naive, np.float32))  # the same sum in float16 does not


ONE = [
    *("exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "square"),
    *("sum", "mean", "prod", "cumsum", "var", "std", "logsumexp", "erf", "erfinv", "norm"),
    *("softmax", "log_softmax", "sigmoid", "gelu", "silu", "softplus", "relu", "tanh", "elu"),
    *("max", "sort", "sin", "tan", "arccos", "cosh", "normalize", "clip"),
]
TWO = ("matmul", "add", "subtract", "multiply", "divide", "power", "where", "outer", "cross")


def result(name: str, *tensors) -> str:
    call = getattr(keras.ops, name)
    if name == "where":
        return _dtype(call(keras.ops.ones((3, 3), "bool"), *tensors))
    return _dtype(call(*tensors, 0.1, 0.9) if name == "clip" else call(*tensors))


def _dtype(x) -> str:
    return keras.backend.standardize_dtype(x.dtype)


@pytest.mark.parametrize("fed", ["float32", "float16"])
@pytest.mark.parametrize("name", ONE)
def test_functions_follow(name: str, fed: str) -> None:
    row = table.find("keras", f"ops.{name}")
    assert table.classify(row, "keras_mixed", f"ops.{name}").output == "follow"
    assert result(name, keras.ops.full((3, 3), 0.5, fed)) == fed


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_dtypes_promote(name: str) -> None:
    row = table.find("keras", f"ops.{name}")
    found = table.classify(row, "keras_mixed", f"ops.{name}").output
    assert found in ("follow", "promote")  # native promotion needs no list
    low, full = (keras.ops.full((3, 3), 0.5, dtype) for dtype in ("float16", "float32"))
    assert result(name, low, low) == "float16"
    assert result(name, low, full) == "float32"


LOSSES = [name for name in table.lists("keras_mixed")["full"] if name.startswith("losses.")]


@pytest.fixture
def mixed():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.usefixtures("mixed")
def test_loss_classes_are_full_and_their_functions_follow(name: str) -> None:
    last = name.removeprefix("losses.")
    scores = keras.ops.full((2, 3), 0.5, "float16")
    target = keras.ops.ones((2, 3), "float16")
    if last == "SparseCategoricalCrossentropy":
        target = keras.ops.ones((2,), "int32")
    if last == "CTC":
        scores, target = keras.ops.full((2, 4, 3), 0.5, "float16"), keras.ops.ones((2, 2), "int32")
    assert _dtype(getattr(keras.losses, last)()(target, scores)) == "float32"
    row = table.find("keras", name)
    for other in table.names(row, "keras"):
        if other.startswith("losses.") and other[7].islower() and other != "losses.ctc":
            if ("sparse" in other) != (last == "SparseCategoricalCrossentropy"):
                continue  # its targets are another kind
            found = table.classify(row, "keras_mixed", other)
            assert found.output == "follow"
            assert _dtype(getattr(keras.losses, other[7:])(target, scores)) == "float16"


@pytest.mark.usefixtures("mixed")
def test_metrics_and_optimizer_are_full() -> None:
    listed = table.lists("keras_mixed")["full"]
    for name in (entry for entry in listed if entry.startswith("metrics.")):
        metric = getattr(keras.metrics, name.removeprefix("metrics."))()
        assert _dtype(metric.result()) == "float32"
    layer = keras.layers.Dense(2)
    layer.build((2, 2))
    optimizer = keras.optimizers.Adam()
    optimizer.build(layer.trainable_variables)
    slots = [v for v in optimizer.variables if "int" not in str(v.dtype)]
    assert {_dtype(slot) for slot in slots} == {"float32"}
