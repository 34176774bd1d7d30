"""What a prepared torch model looks like from outside: its forward's arguments, copies, pickles."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
from types import MethodType

import pytest
import torch
from torch import nn
from torch.multiprocessing import get_context
from torch.nn import functional

import mpcore as mp
from mpcore.errors import GuardError

POLICIES = [
    "float32",
    "mixed_bfloat16",
    "mixed_float16; full 3",
    "autocast_bfloat16; full 0",
    "model_bfloat16",
    "model_bfloat16, master=split",
    "model_float16, master=none",
]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def ready(model: nn.Module, policy: str):
    return mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy)


def images() -> torch.Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(1))


def entropy(model):
    y = torch.arange(16) % 4
    return lambda x: functional.cross_entropy(model(x).float(), y)


class Text(nn.Module):
    """A model whose host reads what its forward takes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 4)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, *, scale: float = 1.0
    ) -> torch.Tensor:
        """Return logits."""
        return self.head(self.embed(input_ids).mean(1)) * scale


@pytest.mark.parametrize("policy", POLICIES)
def test_the_arguments_of_forward_stay_readable(policy):
    model, plain = Text(), Text()
    ready(model, policy.split(";")[0])
    for ours, own in ((model, plain), (model.head, plain.head), (model.embed, plain.embed)):
        assert inspect.signature(ours.forward) == inspect.signature(own.forward)
        assert ours.forward.__name__ == "forward"
        assert ours.forward.__doc__ == own.forward.__doc__


@pytest.mark.parametrize("policy", POLICIES[:4])
@pytest.mark.parametrize("layer", [0, 1, 3])
def test_a_forward_that_the_instance_had_is_kept(policy, layer):
    ours, plain = net().eval(), net().eval()
    for model in (ours, plain):
        module = model[layer]
        model[layer].forward = lambda x, module=module: 2 * type(module).forward(module, x)
    before = inspect.signature(ours[layer].forward)
    kept = vars(ours[layer])["forward"]
    amp = ready(ours, policy)
    assert inspect.signature(ours[layer].forward) == before
    with torch.no_grad(), amp.autocast():
        out = ours(images())
    torch.testing.assert_close(out, plain(images()), rtol=0.05, atol=0.05)
    amp.release()
    assert vars(ours[layer])["forward"] is kept
    assert torch.equal(ours(images()), plain(images()))


def test_a_copy_uses_its_own_forward_of_the_instance():
    class Counts:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            return x

    model = net()
    model[1].forward = Counts()
    ready(model, "mixed_bfloat16")
    twin = copy.deepcopy(model)
    twin(images())
    assert vars(model[1])["_mpcore_own_forward"].calls == 0
    assert vars(twin[1])["_mpcore_own_forward"].calls == 1


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", [copy.deepcopy, pickled, saved])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_copy_computes_what_the_model_does(way, policy):
    model = net()
    amp = ready(model, policy)
    amp.step(entropy(model), images())
    model.eval()
    twin = way(model)
    twin = way(twin)  # and so does a copy of the copy
    with torch.no_grad(), amp.autocast():
        assert torch.equal(twin(images()), model(images()))
    with torch.no_grad(), amp.autocast():  # anew: autocast keeps the casts of a region
        twin[3].weight.zero_()  # its own weights
        assert not torch.equal(twin(images()), model(images()))
    assert [p.dtype for p in twin.parameters()] == [p.dtype for p in model.parameters()]
    assert amp.step(entropy(model), images()).stepped


@pytest.mark.parametrize("way", [copy.deepcopy, pickled, saved])
def test_a_part_can_be_copied_alone(way):
    model = net()
    ready(model, "mixed_bfloat16")
    part = way(model[3])
    x = torch.randn(2, 16)
    assert part(x).dtype == torch.bfloat16
    assert torch.equal(part(x), model[3](x))


def test_a_shallow_copy_computes_what_the_model_does():
    model = net()
    ready(model, "mixed_bfloat16")
    model.eval()
    assert torch.equal(copy.copy(model)(images()), model(images()))
    assert isinstance(model.forward, MethodType)


def test_release_leaves_modules_as_they_were():
    model = net()
    before = [set(vars(module)) for module in model.modules()]
    ready(model, "mixed_bfloat16").release()
    assert [set(vars(module)) for module in model.modules()] == before
    assert type(pickled(model)) is nn.Sequential


def test_what_cannot_be_named_is_refused_by_pickle():
    from mpcore_torch.forwards import replace_forward

    model = net()
    replace_forward(model, lambda original: lambda self, x: original(self, x))
    with pytest.raises(GuardError, match="state_dict"):
        pickle.dumps(model)
    copy.deepcopy(model)


def run(model, results):
    with torch.no_grad():
        results.put((model(images()).numpy(), model[0](images()).dtype == torch.bfloat16))


def test_a_spawned_worker_gets_the_prepared_model():
    model = net().eval()
    ready(model, "mixed_bfloat16")
    context = get_context("spawn")
    results = context.Queue()
    process = context.Process(target=run, args=(model, results))
    process.start()
    outputs, lowered = results.get(timeout=120)
    process.join()
    assert lowered
    with torch.no_grad():
        assert torch.equal(torch.from_numpy(outputs), model(images()))


@pytest.mark.usefixtures("dynamo")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch imports it
def test_wrapped_signatures_do_not_break_the_compiler():
    model = net()
    amp = ready(model, "mixed_bfloat16")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    y = torch.arange(16) % 4
    result = amp.step(lambda x: functional.cross_entropy(compiled(x), y), images())
    assert result.stepped


def test_partials_of_a_host_around_forward_keep_the_casts():
    model = net()
    ready(model, "mixed_bfloat16")
    inner = model[0].forward
    model[0].forward = functools.partial(inner)
    assert model[0](images()).dtype == torch.bfloat16
