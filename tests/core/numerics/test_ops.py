"""The op table: its shape, its counts, its names, and the pages written from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpcore import PolicyError
from mpcore.numerics import ops
from mpcore.policy.layer import CATEGORIES

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "ops.md"
WORDS = ("lower", "full", "promote", "follow", "banned", "infer", "mixed", "absent")
ROWS = [row.name for row in ops.ops()]
TORCH = ("torch_cuda", "torch_cpu", "torch_npu", "torch_xpu", "torch_mps")
# In torch's lists, but akin to no row: quantisation, complex views, and one dot product that is
# lowered where the others promote.
NO_ROW = {"fake_quantize_per_tensor_affine", "linalg_vecdot", "polar", "view_as_complex"}


def names_in(system: str) -> list[str]:
    return [name for listed in ops.lists(system).values() for name in listed]


def test_counts_of_the_reference() -> None:
    assert len(ROWS) == len(set(ROWS)) == 105
    assert len(ops.systems()) == 20
    counts = {name: len(names_in(name)) for name in TORCH}
    assert counts == {
        "torch_cuda": 119,
        "torch_cpu": 127,
        "torch_npu": 104,
        "torch_xpu": 117,
        "torch_mps": 95,
    }
    assert len(names_in("mindspore_O1")) == 20
    assert len(names_in("mindspore_O2")) == 4
    assert {k: len(v) for k, v in ops.lists("mindspore_auto").items()} == {
        "lower": 20,
        "full": 46,
        "promote": 10,
    }
    assert len(names_in("onnxconverter_float16")) == 28


def test_torch_cpu_does_not_predict_cuda() -> None:
    found = ops.differences("torch_cpu", "torch_cuda")
    assert str(found) == "torch_cpu differs from torch_cuda in 49 of 101 rows"
    assert len(found) == 49
    by_name = {row.op: (row.a.category, row.b.category) for row in found}
    assert by_name["softmax"] == ("follow", "full")
    assert by_name["bce"] == ("full", "banned")
    assert "linear" not in by_name


def test_a_system_differs_from_itself_nowhere() -> None:
    for name in ops.systems():
        assert len(ops.differences(name, name)) == 0
        assert len(ops.differences(name, name, by="output")) == 0


def test_outputs_differ_where_categories_do_not() -> None:
    found = {row.op for row in ops.differences("mindspore_O1", "torch_cuda", by="output")}
    same = {row.op for row in ops.differences("mindspore_O1", "torch_cuda")}
    assert "linear" in found - same  # lowered by both, cast back by one


def test_npu_is_cuda_without_fifteen() -> None:
    cuda, npu = ops.lists("torch_cuda"), ops.lists("torch_npu")
    missing = set(names_in("torch_cuda")) - set(names_in("torch_npu"))
    assert len(missing) == 15
    assert {"rms_norm", "linalg_vecdot", "vdot"} < missing
    assert sum("upsample" in name for name in missing) == 12
    assert {key: set(npu[key]) - set(cuda[key]) for key in npu} == {key: set() for key in npu}
    rows = [row.op for row in ops.differences("torch_npu", "torch_cuda")]
    assert rows == ["rms_norm", "interpolate"]


def test_xpu_is_cuda_without_cudnn() -> None:
    missing = set(names_in("torch_cuda")) - set(names_in("torch_xpu"))
    assert missing == {"cudnn_convolution", "cudnn_convolution_transpose"}
    assert len(ops.differences("torch_xpu", "torch_cuda")) == 0


def test_bce_is_banned_and_o1_casts_back() -> None:
    found = {
        (row.name, name): ops.classify(row, name) for row in ops.ops() for name in ops.systems()
    }
    banned = [key for key, entry in found.items() if entry.category == "banned"]
    assert banned == [("bce", name) for name in ("torch_cuda", "torch_npu", "torch_xpu", "apex_O1")]
    lowered = {key for key, entry in found.items() if entry.category == "lower"}
    back = {key for key in lowered if found[key].output == "full"}
    assert {name for op, name in back if op == "linear"} == {"mindspore_O1"}
    assert not {name for op, name in back if op == "softmax"}


@pytest.mark.parametrize(
    ("row", "system", "expected"),
    [
        pytest.param("layer_norm", "torch_cuda", ("full", "full", True), id="cuda-norm"),
        pytest.param("layer_norm", "torch_cpu", ("follow", "follow", False), id="cpu-norm"),
        pytest.param("layer_norm", "keras_mixed", ("full", "lower", True), id="keras-norm"),
        pytest.param("layer_norm", "mindspore_O2", ("full", "lower", True), id="O2-norm"),
        pytest.param("group_norm", "mindspore_O2", ("lower", "lower", False), id="O2-group"),
        pytest.param("softmax", "mindspore_O1", ("full", "full", False), id="O1-softmax"),
        pytest.param("softmax", "mindspore_O3", ("lower", "lower", False), id="O3-softmax"),
        pytest.param("softmax", "keras_mixed", ("lower", "lower", True), id="keras-softmax"),
        pytest.param("softmax", "tf_fp16_cuda", ("infer", "infer", True), id="tf-softmax"),
        pytest.param("matmul", "mxnet_fp16", ("mixed", "mixed", True), id="mxnet-matmul"),
        pytest.param("bce", "torch_cuda", ("banned", "none", True), id="banned"),
        pytest.param("square", "torch_cuda", ("follow", "full", False), id="made-of-pow"),
        pytest.param("topk", "onnxconverter_float16", ("full", "lower", True), id="onnx-block"),
        pytest.param("log1p", "paddle_float16_O1", ("promote", "promote", False), id="paddle-O1"),
        pytest.param("log1p", "paddle_float16_OD", ("full", "full", False), id="paddle-OD"),
        pytest.param("metric", "torch_cuda", ("absent", "none", False), id="absent"),
    ],
)
def test_what_a_system_does(row: str, system: str, expected: tuple[str, str, bool]) -> None:
    found = ops.classify(row, system)
    assert (found.category, found.output, found.listed) == expected
    assert found.source == ops.system(system).source


def test_one_name_of_an_op() -> None:
    both = ops.classify("max_pool", "torch_cpu")
    assert (both.category, both.listed) == ("full", True)
    assert "max_pool3d" in both.names
    assert "max_pool2d" in both.others
    assert ops.classify("max_pool", "torch_cpu", "aten::max_pool2d").category == "follow"
    assert ops.classify("sum", "mindspore_auto", "P.ReduceSum").category == "follow"
    assert ops.classify("sum", "mindspore_auto", "P.SumExt").category == "full"
    with pytest.raises(PolicyError, match="did you mean 'max_pool3d'"):
        ops.classify("max_pool", "torch_cpu", "maxpool3d")


def test_every_word_is_in_the_legend() -> None:
    for word in WORDS:
        assert ops.meaning(word)
    found = {ops.classify(row, name).category for row in ROWS for name in ops.systems()}
    assert found == set(WORDS)  # none unexplained, none unused
    outputs = {ops.classify(row, name).output for row in ROWS for name in ops.systems()}
    assert outputs == {*WORDS, "none"} - {"banned", "absent"}


@pytest.mark.parametrize("row", ops.ops(), ids=lambda row: row.name)
def test_row(row: ops.Op) -> None:
    assert row.category in ("lower", "full", "promote", "follow")
    assert row.output in ("lower", "full", "promote", "follow")
    assert row.layer == "" or row.layer in CATEGORIES
    assert set(row.names) | set(row.also) <= set(ops.frameworks())
    assert set(row.comes_out) <= set(ops.systems())
    for framework in ops.frameworks():
        mine = ops.names(row, framework)
        assert len(set(mine)) == len(mine)
        for name in mine:
            assert ops.find(framework, name) is row
        for name in row.also.get(framework, ()):
            if name != "layers.Activation":  # whatever its argument says
                assert ops.find(framework, name) is not row


def test_layer_defaults_agree_with_op_defaults() -> None:
    """A layer and its op have one default, but where a layer is more than its op."""
    found = {
        row.name: (CATEGORIES[row.layer], row.category)
        for row in ops.ops()
        if row.layer and CATEGORIES[row.layer] != row.category
    }
    assert found == {
        "dot": ("lower", "promote"),  # as a layer its inputs are activations
        "tensordot": ("lower", "promote"),
        "bilinear": ("lower", "promote"),  # as a layer it owns its weight
        "prelu": ("follow", "lower"),  # as an op its weight comes from outside
        "embedding": ("lower", "follow"),  # a layer casts its table, an op does not
        "softplus": ("follow", "full"),  # one category holds all activations
    }


def test_the_norms_that_own_parameters_protect_them() -> None:
    protected = [row.name for row in ops.ops() if row.protects_params]
    assert protected == ["layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"]
    assert all(ops.op(name).layer == "norm" for name in protected)


@pytest.mark.parametrize("system", ops.systems())
def test_lists_hold_each_name_once(system: str) -> None:
    listed = names_in(system)
    assert len(set(listed)) == len(listed)
    entry = ops.system(system)
    assert entry.framework in ops.frameworks()
    assert entry.mechanism in ("op", "layer", "graph")
    assert re.search(r"\d", entry.source)  # a version or a commit
    for key in ops.lists(system):
        category, _, output = key.partition(":")[0].partition("/")
        assert category in WORDS
        assert output in ("", "lower", "full")


@pytest.mark.parametrize("system", TORCH)
def test_every_listed_torch_op_has_a_row(system: str) -> None:
    known = {name.removeprefix("aten::") for row in ROWS for name in ops.names(row, "torch")}
    assert set(names_in(system)) - known <= NO_ROW


@pytest.mark.parametrize("system", ["mindspore_O1", "mindspore_O2", "mindspore_auto"])
def test_every_listed_mindspore_op_has_a_row(system: str) -> None:
    for name in names_in(system):
        assert name in ops.names(ops.find("mindspore", name), "mindspore")


@pytest.mark.parametrize(
    ("framework", "name", "expected"),
    [
        ("torch", "torch.nn.Softmax", "softmax"),
        ("torch", "nn.Softmax", "softmax"),
        ("torch", "torch.nn.modules.activation.Softmax", "softmax"),
        ("torch", "F.softmax", "softmax"),
        ("torch", "torch.nn.functional.softmax", "softmax"),
        ("torch", "torch.softmax", "softmax"),
        ("torch", "torch.Tensor.softmax", "softmax"),
        ("torch", "aten::softmax.int", "softmax"),
        ("torch", "torch.ops.aten.softmax.Dimname", "softmax"),
        ("torch", "softmax", "softmax"),
        ("torch", "aten::add.Tensor", "add_sub"),
        ("torch", "torch.linalg.svd", "linalg_decomp"),
        ("torch", "aten::conv2d.padding", "conv2d"),
        ("keras", "Dense", "linear"),
        ("keras", "keras.layers.Dense", "linear"),
        ("keras", "tf.keras.layers.Dense", "linear"),
        ("keras", "keras.src.layers.core.dense.Dense", "linear"),
        ("keras", "keras.ops.softmax", "softmax"),
        ("keras", "MeanSquaredError", "mse_loss"),
        ("keras", "metrics.MeanSquaredError", "metric"),
        ("mindspore", "Dense", "linear"),
        ("mindspore", "mindspore.nn.layer.basic.Dense", "linear"),
        ("mindspore", "ops.softmax", "softmax"),
        ("mindspore", "mindspore.ops.softmax", "softmax"),
        ("mindspore", "ms.mint.nn.functional.softmax", "softmax"),
        ("mindspore", "P.Softmax", "softmax"),
        ("mindspore", "mindspore.ops.operations.nn_ops.Softmax", "softmax"),
        ("tf", "MatMul", "matmul"),
        ("tf", "tf.raw_ops.Softmax", "softmax"),
        ("onnx", "Gemm", "linear"),
    ],
)
def test_find(framework: str, name: str, expected: str) -> None:
    assert ops.find(framework, name).name == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.op("sofmax"),
            "`op` must be a neutral op name .*got 'sofmax'; did you mean 'so",
        ),
        (lambda: ops.op(3), "got 3"),
        (lambda: ops.op(["exp"]), "got ..exp"),
        (lambda: ops.match("layernorm"), "did you mean 'layer_norm'"),
        (lambda: ops.find("torch", "nn.Sofmax"), "got 'nn.Sofmax'; did you mean 'nn.Softmax'"),
        (lambda: ops.find("torch", "other.softmax"), "must be a name of torch"),
        (lambda: ops.find("jax", "exp"), "`framework` must be one of 'torch'"),
        (lambda: ops.names("exp", "pytorch"), "did you mean 'torch'"),
        (lambda: ops.classify("exp", "torch_gpu"), "`system` must be one of .*'torch_gpu'"),
        (lambda: ops.lists("mindspore_O4"), "did you mean 'mindspore_O"),
        (lambda: ops.system("cpu"), "`system` must be one of"),
        (lambda: ops.meaning("white"), "`category` must be one of 'lower'"),
        (lambda: ops.differences("torch_cpu", "torch_cuda", by="name"), "`by` must be one of"),
    ],
)
def test_errors_give_the_nearest(call, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        call()


def test_match_takes_patterns_and_groups() -> None:
    assert [row.name for row in ops.match("linear")] == ["linear"]  # a group of that name too
    assert len(ops.match("linea*")) > 1
    assert [row.name for row in ops.match("conv?d")] == ["conv1d", "conv2d", "conv3d"]
    assert {row.group for row in ops.match("loss")} == {"loss"}
    assert len(ops.match("*")) == 105


def test_values_are_frozen() -> None:
    row = ops.op("exp")
    with pytest.raises(TypeError):
        row.names["torch"] = ()  # type: ignore[index]
    with pytest.raises(AttributeError):
        row.category = "lower"  # type: ignore[misc]
    with pytest.raises(TypeError):
        ops.lists("torch_cpu")["full"] = ()  # type: ignore[index]
    assert row == ops.op("exp")
    assert len({row, ops.op("exp")}) == 1


def test_the_table_is_read_when_asked_and_imports_no_framework() -> None:
    code = (
        "import sys, mpcore.numerics.ops as ops\n"
        "assert ops.read_table.cache_info().currsize == 0\n"
        "ops.find('torch', 'nn.Linear')\n"
        "assert ops.read_table.cache_info().currsize == 1\n"
        "print(*{'torch', 'tensorflow', 'keras', 'mindspore'} & set(sys.modules))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


def test_the_file_has_one_op_a_line() -> None:
    text = (Path(ops.__file__).parent / "op_table.json").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith('    {"name"')]
    assert [json.loads(line.rstrip(","))["name"] for line in lines] == ROWS


def test_portable_list_is_that_of_cuda_but_for_what_cuda_refuses() -> None:
    found = ops.portable()
    assert list(found) == ROWS
    assert {entry.category for entry in found.values()} == {"lower", "full", "promote", "follow"}
    exceptions = {name for name, entry in found.items() if entry.note}
    assert exceptions == {
        "bce",
        "ctc_loss",
        "index_copy",
        "linalg_decomp",
        "linalg_solve_inv",
        "quantile",
    }
    assert {name for name, entry in found.items() if "torch_cuda" in entry.unlike} == exceptions
    three = {"torch_cuda", "torch_npu", "mindspore_auto"}
    assert sum(not three & set(entry.unlike) for entry in found.values()) == 84
    for name in set(ROWS) - exceptions:
        cuda = ops.outcome(name, ops.portable_like())
        assert found[name].category == ("follow" if cuda == "absent" else cuda)


def test_outcome_is_what_an_unlisted_op_is_made_of() -> None:
    assert ops.outcome("square", "torch_cuda") == "full"
    assert ops.outcome("einsum", "torch_cpu") == "lower"
    assert ops.outcome("max_pool", "torch_cpu", "max_pool2d") == "follow"
    assert ops.outcome("bce", "torch_cuda") == "banned"


needs_docs = pytest.mark.skipif(
    Path(ops.__file__).parents[2] != DOCS.parents[2], reason="the installed package has no docs"
)


def written(name: str) -> list[str]:
    """Return the lines of docs/reference/ops.md between the marks of one generated part."""
    text = DOCS.read_text(encoding="utf-8")
    part = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end {name} -->", text, re.S)
    assert part, name
    return part[1].splitlines()


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]


def word(row: ops.Op, system: str) -> str:
    """Return ``category`` or ``category > output``; a default stands in brackets."""
    found = ops.classify(row, system)
    if found.category == "absent":
        return "-"
    plain = found.output in (found.category, "none")
    text = found.category if plain else f"{found.category} > {found.output}"
    return text if found.listed else f"({text})"


SHOWN = {
    "torch CUDA": "torch_cuda",
    "torch CPU": "torch_cpu",
    "Keras": "keras_mixed",
    "MindSpore O1": "mindspore_O1",
    "O2": "mindspore_O2",
    "auto": "mindspore_auto",
    "TF fp16": "tf_fp16_cuda",
    "Paddle O1": "paddle_float16_O1",
}


@needs_docs
def test_docs_table_of_ops() -> None:
    rows = []
    for row in ops.ops():
        ours = row.category if row.category == row.output else f"{row.category} > {row.output}"
        rows.append((row.name, row.group, ours, *(word(row, name) for name in SHOWN.values())))
    assert written("ops") == table(("op", "group", "mpcore", *SHOWN), rows)


@needs_docs
def test_docs_table_of_systems() -> None:
    rows = []
    for name in ops.systems():
        entry = ops.system(name)
        size = str(len(names_in(name)))
        rows.append((f"`{name}`", entry.mechanism, entry.default, size, entry.source, entry.note))
    head = ("system", "casts by", "not listed", "listed", "source", "note")
    assert written("systems") == table(head, rows)


@needs_docs
def test_docs_counts_of_differences() -> None:
    base = "torch_cuda"
    others = [name for name in ops.systems() if name != base]
    rows = [
        (f"`{name}`", f"{len(found)} of {found.compared}", f"{len(out)} of {out.compared}")
        for name in others
        for found, out in [(ops.differences(name, base), ops.differences(name, base, by="output"))]
    ]
    assert written("differences") == table(("system", "category", "output"), rows)


@needs_docs
def test_docs_notes() -> None:
    assert written("notes") == [f"- `{row.name}`: {row.note}" for row in ops.ops() if row.note]


@needs_docs
def test_docs_portable_list() -> None:
    rows = [
        (
            entry.op,
            entry.category,
            ", ".join(f"{name} {ops.outcome(entry.op, name)}" for name in entry.unlike),
            entry.note,
        )
        for entry in ops.portable().values()
        if entry.unlike
    ]
    head = ("op", "portable", "natively otherwise", "exception")
    assert written("portable") == table(head, rows)
