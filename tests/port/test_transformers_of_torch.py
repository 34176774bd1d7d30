"""Attention and transformers of torch: what is copied, what it takes, what it gives back."""

from __future__ import annotations

import pytest

from .ports import FILLED, beside, loaded, ported

pytestmark = pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor", "ignore:Support for mismatched"
)

HEAD = f"""{FILLED}
import torch.nn.functional as F
x = (torch.arange(80.0).reshape(5, 2, 8) % 7 - 3) / 3
memory = (torch.arange(64.0).reshape(4, 2, 8) % 5 - 2) / 2
causal = torch.triu(torch.full((5, 5), float("-inf")), diagonal=1)
padded = torch.tensor([[False] * 4 + [True], [False] * 3 + [True] * 2])
"""
OWN = """class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, 2)
        self.norm = nn.LayerNorm(width)
    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=None):
        seen, self.by = self.self_attn(src, src, src, attn_mask=src_mask)
        return self.norm(src + seen)
"""


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            "layer = filled(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0))\n"
            "net = nn.TransformerEncoder(layer, 2)\n"
            "made = [net(x), net.layers[1].linear1.weight]\n",
            id="a layer that was given weights",
        ),
        pytest.param(
            "net = filled(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 2))\n"
            "made = [net(x, mask=causal), net(x, causal, padded), net(x, mask=causal,"
            " is_causal=True), net(x, src_key_padding_mask=padded)]\n",
            id="masks by torch's words, one of numbers beside one of truths",
        ),
        pytest.param(
            f"{OWN}net = nn.TransformerEncoder(filled(Block(8)), num_layers=2,"
            " norm=nn.LayerNorm(8))\n"
            "made = [net(x), net(x, mask=causal), net.layers[1].by, net.num_layers]\n",
            id="a layer of the script's own",
        ),
        pytest.param(
            "class Scaled(nn.TransformerEncoderLayer):\n"
            "    def __init__(self, *args, by=2.0, **kwargs):\n"
            "        super().__init__(*args, **kwargs)\n"
            "        self.by = by\n"
            "    def _ff_block(self, x):\n"
            "        return self.by * super()._ff_block(x)\n"
            "net = nn.TransformerEncoder(filled(Scaled(8, 2, 16, dropout=0.0, by=3.0)), 1)\n"
            "made = [net(x), net.layers[0].by]\n",
            id="a class made of a layer, with a part of its own",
        ),
        pytest.param(
            "class Every(nn.TransformerEncoder):\n"
            "    def forward(self, src, mask=None):\n"
            "        seen = []\n"
            "        for layer in self.layers:\n"
            "            src = layer(src, src_mask=mask)\n"
            "            seen.append(src)\n"
            "        return self.norm(src), seen\n"
            "net = filled(Every(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2,"
            " nn.LayerNorm(8)))\n"
            "last, seen = net(x, causal)\n"
            "made = [last, *seen]\n",
            id="a class made of an encoder",
        ),
        pytest.param(
            "layer = filled(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, activation='gelu'))\n"
            "net = nn.TransformerDecoder(layer, 2)\n"
            "made = [net(x, memory), net(tgt=x, memory=memory, tgt_mask=causal,"
            " tgt_is_causal=True, tgt_key_padding_mask=padded)]\n",
            id="a decoder",
        ),
        pytest.param(
            "net = filled(nn.Transformer(8, 2, 1, 1, 16, dropout=0.0))\n"
            "mask = net.generate_square_subsequent_mask(5)\n"
            "made = [net(memory, x, tgt_mask=mask), len(list(net.parameters()))]\n",
            id="both",
        ),
        pytest.param(
            "layer = filled(nn.TransformerEncoderLayer(8, 2, 16, 0.0, F.gelu, batch_first=True,"
            " norm_first=True, bias=False))\n"
            "for p in layer.self_attn.parameters():\n"
            "    p.requires_grad = False\n"
            "net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)\n"
            "made = [net(x), [p.requires_grad for p in net.parameters()]]\n",
            id="without biases, and frozen",
        ),
        pytest.param(
            "net = filled(nn.MultiheadAttention(8, 2))\n"
            "seen, by = net(x, memory, memory, need_weights=False)\n"
            "made = [seen, by is None, *net(query=x, key=memory, value=memory + 1)]\n",
            id="attention without weights, and by words",
        ),
        pytest.param(
            "net = filled(nn.MultiheadAttention(8, 2))\n"
            "made = [*net(x, x, x, key_padding_mask=padded, attn_mask=causal),\n"
            "    *net(x, x, x, key_padding_mask=padded.float() * -9.0, attn_mask=causal < 0),\n"
            "    *net(x, x, x, key_padding_mask=padded, attn_mask=causal < 0)]\n",
            id="attention by masks of two kinds",
        ),
        pytest.param(
            "net = nn.MultiheadAttention(8, 2)\n"
            "made = [net.out_proj.bias, net.in_proj_bias,\n"
            "    isinstance(net, nn.MultiheadAttention)]\n",
            id="what starts from zeros",
        ),
    ],
)
def test_attention_and_transformers_are_torchs(lines, tmp_path):
    beside(HEAD + lines, tmp_path)


def test_steps_of_an_encoder_train_its_copies(tmp_path):
    beside(
        f"""{HEAD}{OWN}
net = nn.TransformerEncoder(filled(Block(8)), 2)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", enabled=False)
for step in range(3):
    opt.zero_grad()
    loss = (net(x, mask=causal) * memory.sum()).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    made.append(loss.item())
made += [p for p in net.parameters()]
""",
        tmp_path,
    )


def test_older_torchs_layers_know_no_hint(tmp_path):
    lines = OWN.replace(", is_causal=None", "")
    text = ported(f"{HEAD}{lines}net = nn.TransformerEncoder(filled(Block(8)), 2)\n").text
    assert "port.TransformerEncoder" in text
    text += "\nmade = [net(x, mask=causal)]\n"
    assert loaded(text, tmp_path)["made"][0].shape == (5, 2, 8)


def test_clones_and_named_activations(tmp_path):
    beside(
        f"""{HEAD}
from torch.nn.modules.transformer import _get_activation_fn, _get_clones
parts = _get_clones(filled(nn.Linear(8, 8)), 2)
made = [parts[0](x), parts[1](x), len(parts), _get_activation_fn("gelu")(x)]
""",
        tmp_path,
    )
