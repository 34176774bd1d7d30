"""What scripts do with several devices, on the one of a process; what other files give."""

from __future__ import annotations

from .ports import beside, compare, ported

PARALLEL = """import torch
from torch import nn
made = []
net = nn.Linear(4, 2)
for p in net.parameters():
    p.data.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
opt = torch.optim.SGD(net.parameters(), lr=0.5)
x, y = torch.linspace(-1.0, 1.0, 24).view(6, 4), torch.tensor([0, 1, 1, 0, 1, 0])
def on_all(model, *given):
    devices = {devices}
    replicas = {replicas}
    inputs = {inputs}
    replicas = replicas[: len(inputs)]
    outputs = {outputs}
    return {gathered}
for turn in range(3):
    loss = nn.functional.cross_entropy(on_all(net, x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.detach())
"""
THEIRS = {
    "devices": "list(range(max(1, torch.cuda.device_count())))",
    "replicas": "torch.nn.parallel.replicate(model, devices)",
    "inputs": "torch.nn.parallel.scatter(given, devices)",
    "outputs": "torch.nn.parallel.parallel_apply(replicas, inputs)",
    "gathered": "torch.nn.parallel.gather(outputs, devices[0])",
}
OWN = {  # torch's want a device each
    "devices": "[0]",
    "replicas": "[model]",
    "inputs": "[given]",
    "outputs": "[one(*given) for one, given in zip(replicas, inputs)]",
    "gathered": "outputs[0]",
}


def filled(parts: dict[str, str]) -> str:
    script = PARALLEL
    for name, code in parts.items():
        script = script.replace(f"{{{name}}}", code)
    return script


def test_one_device_is_all(tmp_path):
    found = ported(filled(THEIRS))
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    compare(filled(OWN), found.text, tmp_path)


def test_several_outputs_are_gathered(tmp_path):
    text = "import mpcore_port_runtime as port\nfrom mindspore import ops\n"
    text += "one = {'a': (ops.ones((2, 3)), ops.zeros((1, 3)))}\n"
    text += "made = list(port.gather_outputs([one, one])['a'])\n"
    theirs = "import torch\nmade = [torch.ones(4, 3), torch.zeros(2, 3)]\n"
    compare(theirs, text, tmp_path)


def test_a_function_of_another_file_may_give_tensors(tmp_path, monkeypatch):
    other = "def loss_of(x):\n    return x * 2\n"
    (tmp_path / "losses_of_two.py").write_text(other, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    script = """import torch
from losses_of_two import loss_of
losses = loss_of(torch.ones(2, 3))
assert losses.size() == torch.ones(2, 3).size()
made = [losses.repeat(2, 1), torch.tensor(losses.size(1))]
"""
    found = beside(script, tmp_path)
    assert "unproven" in [edit.kind for edit in found.edits if "losses.size" in edit.old]


def test_an_object_of_another_file_keeps_its_methods():
    text = ported("import torch\nfrom timing import Timer\nt = Timer()\nt.size(0)\n").text
    assert "t.size(0)" in text


HOOKS = """import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as default
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
net.register_comm_hook(None, fp16_compress_hook)
if True:
    net.register_comm_hook(state=None, hook=default.bf16_compress_hook)
net._set_static_graph()
"""


def test_how_gradients_are_sent_is_left_out():
    found = ported(HOOKS)
    assert {e.line for e in found.edits if e.kind == "changed"} >= {5, 7, 8}
    assert "refused" not in {e.kind for e in found.edits}
    assert "hook" not in found.text
