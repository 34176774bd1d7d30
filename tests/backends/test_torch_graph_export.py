"""Files of torch models with a policy in them: read again, checked, and run elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.backend("torch")
torch = pytest.importorskip("torch")

from graph_models_torch import MODELS, Made  # noqa: E402
from torch import nn  # noqa: E402

import mpcore as mp  # noqa: E402

WHOLE = [name for name in MODELS if name not in ("branchy", "lstm", "shared")]
FLOAT16 = "autocast_float16, by=graph"


def _made(name: str) -> Made:
    torch.manual_seed(0)
    model, batch, loss = MODELS[name]()
    return model.eval(), batch, loss


@pytest.mark.parametrize("policy", [FLOAT16, "autocast_bfloat16, by=graph; full op=softmax"])
def test_a_pt2_file_holds_the_policy_and_reads_back_the_same(tmp_path: Path, policy: str) -> None:
    model, (x, _), _ = _made("convnet")
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = mp.export(model, tmp_path / "m.pt2", policy, x)
    assert model.training
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())
    again = torch.export.load(tmp_path / "m.pt2").module()
    with torch.no_grad():
        found, expected = again(x), model.eval()(x)
    assert found.dtype == torch.float32
    assert float((found - expected).abs().max() / expected.abs().max()) == pytest.approx(
        made.difference
    )
    assert 0 < made.difference < 0.05
    assert "read back: the same bits" in str(made)
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt2"]


def test_what_a_rule_keeps_full_is_full_in_the_file(tmp_path: Path) -> None:
    model, (x, _), _ = _made("convnet")
    mp.export(model, tmp_path / "m.pt2", f"{FLOAT16}; full path=fc", x)
    state = torch.export.load(tmp_path / "m.pt2").state_dict
    assert state["fc.weight"].dtype == torch.float32
    assert state["stem.weight_float16"].dtype == torch.float16
    assert "stem.weight" not in state


class _Many(nn.Module):
    """Takes arguments by name, returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Any, *, shift: Any) -> dict[str, Any]:
        h = self.a(x) + shift
        return {"out": self.b(h), "hidden": h}


def test_arguments_by_name_and_structures_go_through(tmp_path: Path) -> None:
    model, given = _Many().eval(), {"x": torch.randn(2, 4), "shift": torch.randn(4)}
    mp.graph.part.GRAPH.of("torch").export(
        model, tmp_path / "m.pt2", mp.Policy.parse(FLOAT16), given
    )
    found = torch.export.load(tmp_path / "m.pt2").module()(**given)
    assert set(found) == {"out", "hidden"}
    assert found["out"].dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "file", "policy", "message"),
    [
        ("convnet", "m.h5", FLOAT16, r"must end in \.onnx or \.pt2"),
        ("branchy", "m.pt2", FLOAT16, "torch.export cannot follow Branchy"),
        ("lstm", "m.pt2", FLOAT16, "cannot be written with casts of its own"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_no_file(
    tmp_path: Path, name: str, file: str, policy: str, message: str
) -> None:
    model, (x, _), _ = _made(name)
    with pytest.raises(mp.GraphError, match=message):
        mp.export(model, tmp_path / file, policy, x)
    assert list(tmp_path.iterdir()) == []


# --- ONNX: needs the extra, which the common environment has not


@pytest.fixture
def runtime() -> Any:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason="the extra mpcore[onnx] is not installed")
    return pytest.importorskip("onnxruntime", reason="mpcore[onnx] is not installed")


pytestmark_onnx = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytestmark_onnx
@pytest.mark.parametrize("name", WHOLE)
def test_an_onnx_file_is_valid_and_runs(tmp_path: Path, runtime: Any, name: str) -> None:
    model, (x, _), _ = _made(name)
    made = mp.export(model, tmp_path / "m.onnx", FLOAT16, x)
    assert made.difference <= 2e-3
    assert "onnx.checker: valid" in str(made)
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert out.dtype == "float32"


@pytestmark_onnx
def test_what_onnx_has_no_function_for_is_refused(tmp_path: Path, runtime: Any) -> None:
    del runtime
    model, (x, _), _ = _made("shared")
    with pytest.raises(mp.GraphError, match=r"torch\.onnx cannot write this model: only 4D query"):
        mp.export(model, tmp_path / "m.onnx", FLOAT16, x)
    assert list(tmp_path.iterdir()) == []


class _Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return torch.softmax(self.fc(torch.relu(self.bn(self.conv(x))).mean((2, 3))), -1)


@pytestmark_onnx
@pytest.mark.xfail(reason="torch.onnx writes autocast's region as a file that is not valid")
def test_autocast_itself_gives_no_file(tmp_path: Path, runtime: Any) -> None:
    class Under(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _Head()

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", torch.float16):
                return self.net(x)

    x = torch.randn(2, 3, 8, 8)
    torch.onnx.export(Under().eval(), (x,), tmp_path / "m.onnx", dynamo=True, verbose=False)
    runtime.InferenceSession(str(tmp_path / "m.onnx"))


@pytestmark_onnx
def test_the_same_model_is_written_here(tmp_path: Path, runtime: Any) -> None:
    del runtime
    made = mp.export(_Head().eval(), tmp_path / "m.onnx", FLOAT16, torch.randn(2, 3, 8, 8))
    assert made.difference <= 2e-3


def test_bfloat16_and_a_missing_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mpcore_torch.graph_export as own

    model, (x, _), _ = _made("convnet")
    monkeypatch.setattr(own, "find_spec", lambda name: None)
    with pytest.raises(mp.GraphError, match=r"pip install 'mpcore\[onnx\]'"):
        mp.export(model, tmp_path / "m.onnx", FLOAT16, x)
    monkeypatch.setattr(own, "find_spec", lambda name: object())
    with pytest.raises(mp.GraphError, match="must lower to float16 for ONNX, got bfloat16"):
        mp.export(model, tmp_path / "m.onnx", "autocast_bfloat16, by=graph", x)


class Widened(nn.Module):
    """Asks for float32 on the way: torch.export claims that what it met there has that dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out((self.inp(x).float() * 3).double().tanh().float())


class Mixed(nn.Module):
    """A bilinear layer takes one dtype: no kernel widens its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(3, 6, 4)), nn.Bilinear(4, 4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.einsum("bi,kio->bko", x, self.w)
        return self.b(y[:, 0], y[:, 1])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rnn(x[:, None].expand(-1, 4, -1))[0][:, -1])


@pytest.mark.parametrize("place", ["exact", "cheapest"])
@pytest.mark.parametrize("kind", [Widened, Mixed])
def test_casts_of_the_model_and_calls_of_one_dtype_are_written(
    kind: type[nn.Module], place: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(3, 6)
    mp.export(model, tmp_path / "m.pt2", f"autocast_float16, by=graph, place={place}", x)
    found = torch.export.load(tmp_path / "m.pt2").module()(x)
    assert found.dtype == torch.float32
    assert torch.allclose(found, model(x), atol=2e-2)


def test_a_recurrent_layer_is_written_where_it_is_lowered_whole(
    tmp_path: Path, runtime: Any
) -> None:
    torch.manual_seed(0)
    model, x = Recurrent().eval(), torch.randn(3, 6)
    with pytest.raises(mp.GraphError, match=r"casts of its own: .*place=cheapest, which lowers it"):
        mp.export(model, tmp_path / "m.onnx", "autocast_float16, by=graph", x)
    made = mp.export(model, tmp_path / "m.onnx", "autocast_float16, by=graph, place=cheapest", x)
    assert made.difference <= 2e-3


class TooLarge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).masked_fill(x > 0, -1e9).softmax(-1)


class Instance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 4, 3), nn.InstanceNorm1d(4, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x[:, None]))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (TooLarge, r"where does not run as it is planned: value cannot be .*; keep it"),
        (Instance, r"onnx.checker does not take the file: .*InstanceNorm.*full with a rule"),
    ],
)
def test_what_does_not_run_in_16_bits_is_refused_by_name(
    kind: type[nn.Module], message: str, tmp_path: Path, runtime: Any
) -> None:
    torch.manual_seed(0)
    with pytest.raises(mp.GraphError, match=message):
        mp.export(
            kind().eval(), tmp_path / "m.onnx", "autocast_float16, by=graph", torch.randn(3, 6)
        )
    assert list(tmp_path.iterdir()) == []


def test_the_way_out_of_a_constant_that_is_too_large(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = TooLarge().eval(), torch.randn(3, 6)
    made = mp.export(model, tmp_path / "m.pt2", "autocast_float16, by=graph; full path=where", x)
    assert made.difference < 0.01
