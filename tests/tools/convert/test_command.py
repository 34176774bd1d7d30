"""The command ``mpcore convert-weights``: whole files between frameworks, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import mpcore
from safetensors.numpy import load_file, save_file

from mpcore import CheckpointError
from mpcore.checkpoint.arrays import from_tree, pick, read_safetensors, to_tree
from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.tools.convert.names import fit
from mpcore.tools.convert.run import convert

pytestmark = pytest.mark.usefixtures("warm_workers")

EVERYTHING = Path(__file__).parents[2] / "zoo" / "everything.py"


def array(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def layer(path: str, **arrays: Any) -> LayerWeights:
    return LayerWeights(path, "linear", {k.replace("__", "."): a for k, a in arrays.items()})


# --- arrays that have names alone ----------------------------------------------------------------

LINEAR = {"weight": array(3, 2), "bias": array(3)}
ZEROS = [layer("a", weight=array(3, 2) * 0, bias=array(3) * 0)]


def test_names_of_mindspore_and_depths_of_recurrent_layers_are_known() -> None:
    given = {
        "norm.gamma": array(4),
        "norm.beta": array(4, seed=1),
        "norm.moving_mean": array(4, seed=2),
        "rnn.weight_ih_l0": array(8, 3),
        "rnn.weight_ih_l1_reverse": array(8, 4),
        "conv.weight": array(2, 3, 1, 5),  # MindSpore's Conv1d
        "table.embedding_table": array(6, 2).astype(np.float16),
    }
    own = [
        layer("norm", weight=array(4), bias=array(4), running_mean=array(4)),
        layer("rnn", weight_ih_l0=array(8, 3)),
        layer("rnn.l1", weight_ih_l0_reverse=array(8, 4)),
        layer("conv", weight=array(2, 3, 5)),
        layer("table", weight=array(6, 2)),
    ]
    notes: list[str] = []
    found = fit(given, own, notes, ordered=False)
    assert (found.how, found.surplus, found.tied) == ("names", [], {})
    assert found.names[2] == {"weight_ih_l0_reverse": "rnn.weight_ih_l1_reverse"}
    for mine, got, names in zip(own, found.layers, found.names, strict=True):
        for key, name in names.items():
            assert got.arrays[key].shape == mine.arrays[key].shape
            np.testing.assert_array_equal(got.arrays[key].ravel(), given[name].ravel())
    assert notes == [
        "table.embedding_table: float16 is written as float32, which holds every value"
    ]


def test_other_names_are_matched_by_order_if_the_file_has_one() -> None:
    given = {
        "tokens.weight": array(5, 4),
        "attn.in_proj_weight": array(12, 4),
        "attn.out_proj.weight": array(4, 4),
        "head.weight": array(5, 4),
    }
    own = [
        layer("parts.0", weight=array(5, 4) * 0),
        layer("parts.1", in_proj_weight=array(12, 4) * 0, out_proj__weight=array(4, 4) * 0),
    ]
    found = fit(given, own, [], ordered=True)
    assert (found.how, found.tied) == ("order", {"head.weight": "tokens.weight"})
    np.testing.assert_array_equal(
        found.layers[1].arrays["out_proj.weight"], given["attn.out_proj.weight"]
    )
    with pytest.raises(CheckpointError, match=r"parts\.0\.weight.*in an order that tells nothing"):
        fit(given, own, [], ordered=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a.weight": array(2, 3), "a.bias": array(3)}, r"shapes .*\(2, 3\).* against .*\(3, 2\)"),
        ({"b.weight": array(3, 2)}, "neither names nor the order of layers fit"),
        ({"a.kernel": array(2, 3), "a.bias": array(3)}, r"names of Keras, such as 'a\.kernel'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    if "a.weight" in given:
        with pytest.raises(CheckpointError, match=r"a\.weight: shape \(2, 3\) does not fit"):
            fit(given, ZEROS, [], ordered=False)
        given = {name.replace("a.", "b."): value for name, value in given.items()}
    with pytest.raises(CheckpointError, match=message):
        fit(given, ZEROS, [], ordered=True)


def test_what_lacks_and_what_is_too_much_is_told() -> None:
    found = fit({"a.weight": LINEAR["weight"], "c.weight": array(1, 9)}, ZEROS, [], ordered=True)
    assert (list(found.layers[0].arrays), found.surplus) == (["weight"], ["c.weight"])


# --- files --------------------------------------------------------------------------------


def test_trees_come_back(tmp_path: Path) -> None:
    content = {"net": {"a.weight": array(2, 3), "n": np.array(3)}, 5: [1, (None, "x")], "f": 1.5}
    arrays: dict[str, Any] = {}
    tree = to_tree(content, arrays, [])
    assert "net.a.weight" in arrays
    back = from_tree(json.loads(json.dumps(tree)), arrays)
    assert back[5] == [1, (None, "x")]
    np.testing.assert_array_equal(back["net"]["a.weight"], content["net"]["a.weight"])
    assert list(pick(back, "", tmp_path, [])) == ["a.weight", "n"]
    with pytest.raises(CheckpointError, match="that mpcore wrote"):
        from_tree({"dict": [["a", {"tensor": "gone", "shape": []}]]}, {})


def test_bfloat16_and_nan_are_kept(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0x7FC1, 0x8000, 0xFF80], np.uint16)  # 1, NaN, -0, -inf
    head = {"x": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}
    text = json.dumps(head).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bits.tobytes())
    notes: list[str] = []
    arrays, _ = read_safetensors(path, notes)
    assert (arrays["x"].view(np.uint32) >> 16).ravel().tolist() == bits.tolist()
    assert notes == ["x: bfloat16 is written as float32, which holds every value"]
    convert(path, tmp_path / "y.safetensors")
    assert load_file(tmp_path / "y.safetensors")["x"].tobytes() == arrays["x"].tobytes()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cut off"):
        convert(path, tmp_path / "z.safetensors")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("x.txt y.pt", {}, r"`IN` must end in \.pt"),
        ("x.pt y.npz", {}, r"`OUT` must end in \.safetensors or \.ckpt"),
        ("gone.pt y.pt", {}, "is not there"),
        ("x.pt x.txt.pt", {}, "--force writes over it"),
        ("x.pt no/y.pt", {}, "the folder of `OUT` must be there"),
        ("x.pt y.weights.h5", {}, r"`--model` must be given for a \.weights\.h5 file"),
        ("x.weights.h5 y.pt", {"model": "m.py:f"}, "no names and layouts"),
        ("x.keras y.pt", {}, "`--model` must be given"),
        ("x.pt y.ckpt", {"model": "m.py"}, r"must be FILE\.py:NAME"),
        ("x.pt y.ckpt", {"model": "m.py:f", "from_": "mindspore"}, "`--from` must fit 'x.pt'"),
        ("x.pt y.ckpt", {"model": "m.py:f", "to": "paddle"}, "`--to` must be one of"),
        ("x.safetensors y.pt", {"experiment": "m.py"}, "`--from` must name the framework"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, options: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x.txt", "x.pt", "x.txt.pt", "x.weights.h5", "x.keras", "x.safetensors", "m.py"):
        Path(name).write_bytes(b"")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=message):
        convert(*map(Path, names.split()), **options)
    assert sorted(tmp_path.iterdir()) == before


# --- frameworks ----------------------------------------------------------------------


def run(folder: Path, *args: object) -> subprocess.CompletedProcess[str]:
    return mpcore(folder, "convert-weights", *args)


def told(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def in_torch(folder: Path, code: str) -> str:
    """Run code in a process of its own, as torch must not meet the other frameworks."""
    done = subprocess.run(
        [sys.executable, "-c", f"import torch\n{code}"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


MAKE = f"""
import sys
sys.path.append({str(EVERYTHING.parent)!r})
import everything
torch.manual_seed(3)
state = everything.build_torch().state_dict()
for name, value in state.items():
    if value.is_floating_point():
        value.copy_(torch.rand(value.shape) + 0.5)
del state["gpt.head.weight"]  # tied: it is gpt.tokens.weight
torch.save({{"net": state, "epoch": 3}}, "a.pt")
"""
COMPARE = """
first = torch.load("a.pt", weights_only=True)["net"]
for other in ("d.pt", "e.pt"):
    last = torch.load(other, weights_only=True)
    assert last.keys() - first.keys() == {"gpt.head.weight"}
    assert torch.equal(last["gpt.head.weight"], first["gpt.tokens.weight"])
    print(*(n for n in first if "num_batches" not in n and not torch.equal(first[n], last[n])))
    names = ("lstm.rnn.bias_ih_l0", "lstm.rnn.bias_hh_l0")
    assert torch.equal(*(sum(state[name] for name in names) for state in (first, last)))
"""


@pytest.mark.slow
@pytest.mark.day
def test_ten_architectures_go_round_through_three_frameworks_bit_for_bit(tmp_path: Path) -> None:
    in_torch(tmp_path, MAKE)
    both = ("--experiment", EVERYTHING, "--format", "json")
    keras = told(run(tmp_path, "a.pt", "b.weights.h5", *both))
    mindspore = told(run(tmp_path, "b.weights.h5", "c.ckpt", *both))
    torch = told(run(tmp_path, "c.ckpt", "d.pt", *both))
    # and by the names in MindSpore's file, with torch's model alone
    named = told(
        run(tmp_path, "c.ckpt", "e.pt", "--model", f"{EVERYTHING}:build_torch", "--format", "json")
    )
    summed = "lstm.rnn.bias_ih_l0 lstm.rnn.bias_hh_l0"
    assert in_torch(tmp_path, COMPARE).splitlines() == [summed, summed]

    assert (keras["matched"], torch["matched"], named["matched"]) == ("layers", "layers", "names")
    changes = {row["source"][0]: row["changes"] for row in keras["rows"]}
    assert changes["mlp.fc1.weight"] == ["transposed"]
    assert "gates reordered" in changes["gru.rnn.weight_ih_l0"]
    assert "pixels of the flattened image reordered" in changes["cnn.head.weight"]
    assert changes["lstm.rnn.bias_hh_l0"] == ["added to the other bias"]
    assert "joined" in changes["encoder.layer1.attention.in_proj_weight"]
    assert changes["unet.up.weight"] == ["transposed"]
    assert not any(row["changes"] for row in torch["rows"])
    assert keras["tied"] == torch["tied"] == {"gpt.head.weight": "gpt.tokens.weight"}
    for found, summing in ((keras, True), (mindspore, True), (torch, False), (named, False)):
        assert found["missing"] == found["surplus"] == []
        assert any("one bias of Keras is the sum" in note for note in found["notes"]) == summing
    assert any("num_batches_tracked left out" in note for note in keras["notes"])
    names = {row["source"][0]: row["target"][0] for row in named["rows"]}
    assert names["resnet.stem.norm.moving_mean"] == "resnet.stem.norm.running_mean"
    # nothing but the files, of which none is torn
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("a.pt", "b.weights.h5", "c.ckpt", "d.pt", "e.pt")
    ]


NET = """
def torch_model():
    from torch import nn
    return nn.Sequential(nn.Linear(3, 2))

def keras_model():
    import keras
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])

def cell():
    from mindspore import nn
    return nn.SequentialCell(nn.Dense(3, 2), nn.Dense(2, 2))

def unbuilt():
    import keras
    return keras.Sequential([keras.layers.Dense(2)])

def nothing():
    return 5
"""
FILES = """
import pickle
class Bomb:
    def __reduce__(self):
        return open, ("bombed", "w")
weight = torch.arange(6.0).reshape(2, 3)
weight[0, 0] = float("nan")
two = {"0.weight": weight, "0.bias": torch.ones(2)}
torch.save(two, "two.pt")
torch.save(two | {"1.weight": torch.ones(2, 2).half(), "rest": torch.ones(1)}, "four.pt")
torch.save({"net": Bomb()}, "bomb.pt")
open("torn.pt", "wb").write(open("two.pt", "rb").read()[:400])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("convert")
    (folder / "net.py").write_text(NET, encoding="utf-8")
    in_torch(folder, FILES)
    save_file({"0.weight": array(3, 2), "0.bias": array(2)}, folder / "in.safetensors")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("bomb.pt x.safetensors", "holds more than weights"),
        ("torn.pt x.safetensors", "no checkpoint of torch"),
        ("in.safetensors x.pt --model net.py:torch_model", "(3, 2) does not fit (2, 3)"),
        ("in.safetensors x.weights.h5 --model net.py:unbuilt", "has no weights yet"),
        ("in.safetensors x.ckpt --model net.py:nothing", "must build a model, nothing gave int"),
        ("in.safetensors x.safetensors --model net.py:gone", "'gone' is not there"),
    ],
)  # fmt: skip
def test_hostile_and_wrong_input_is_one_clear_error(folder: Path, args: str, message: str) -> None:
    before = {path.name for path in folder.iterdir()}
    done = run(folder, *args.split())
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == before


@pytest.mark.slow
def test_files_for_one_model_say_what_did_not_match(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.ckpt"
    found = told(run(folder, "four.pt", out, "--model", "net.py:cell", "--format", "json"), code=1)
    assert (found["missing"], found["surplus"]) == (["1.bias"], ["rest"])
    assert "1.weight: float16 is written as float32, which holds every value" in found["notes"]
    out = tmp_path / "x.weights.h5"
    # by order: Keras' names have nothing in common with torch's
    keras = told(run(folder, "two.pt", out, "--model", "net.py:keras_model", "--format", "json"))
    assert (keras["matched"], keras["rows"][0]["changes"]) == ("order", ["transposed"])
    models = ("--source-model", "net.py:keras_model", "--model", "net.py:torch_model")
    back = run(folder, out, tmp_path / "y.safetensors", *models)
    assert back.returncode == 0, back.stderr
    assert "matched by layers" in back.stdout
    state = load_file(tmp_path / "y.safetensors")
    np.testing.assert_array_equal(state["0.weight"].ravel(), [np.nan, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(state["0.bias"], 1)


SAVE = """
import mpcore as mp
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "float32")
amp.save("run", weights=True)
torch.save(model.state_dict(), "model.pt")
"""
SAME = """
first, last = (torch.load(name, weights_only=True) for name in ("model.pt", "y.pt"))
print([torch.equal(first[name], last[name]) for name in first])
"""


@pytest.mark.slow
def test_weights_of_a_run_and_files_without_a_model(folder: Path, tmp_path: Path) -> None:
    in_torch(tmp_path, SAVE)
    cell = ("--model", f"{folder / 'net.py'}:cell", "--format", "json")
    (weights,) = tmp_path.glob("run.*.safetensors")
    found = told(run(tmp_path, weights.name, "x.ckpt", *cell))
    assert found["matched"] == "layers"
    named = told(run(tmp_path, "x.ckpt", "x.safetensors", "--format", "json"))
    assert named["matched"] == "kept"
    told(run(tmp_path, "x.safetensors", "y.pt", "--format", "json"))
    assert in_torch(tmp_path, SAME) == "[True, True, True, True]\n"
