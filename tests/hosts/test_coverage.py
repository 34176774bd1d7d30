"""Architectures of transformers and timm, from their configurations: what runs in bfloat16.

The multiply-adds are counted by the kernels of a training step, forward and backward, not by
what mpcore says of them. torch's own attention, where it takes its plain kernel on CPU (dropout,
a mask that is trained), computes in float32 whatever comes in: that share is told apart, by
running the same step without dropout, and ``prepare`` tells it of an example.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import mpcore as mp
from mpcore import MpcoreWarning

WORDS = 100
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
MIDDLE = SMALL | {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}


class _Products(TorchDispatchMode):
    """Counts multiply-adds of kernels by the dtype of their last operand."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            floats = [x for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()]
            key = str(floats[-1].dtype).removeprefix("torch.")
            self.counts[key] += count(*args, **(kwargs or {}), out_val=result) // 2
        return result

    @property
    def low(self) -> float:
        return self.counts["bfloat16"] / sum(self.counts.values())


def ids(length: int = 16) -> torch.Tensor:
    return torch.randint(1, WORDS, (2, length))


def text(transformers: Any, kind: str, head: str, **options: Any) -> tuple[nn.Module, dict]:
    config = getattr(transformers, f"{kind}Config")(**options)
    x = ids(32)
    labels = torch.tensor([0, 1]) if "Sequence" in head else x
    return getattr(transformers, f"{kind}{head}")(config), {"input_ids": x, "labels": labels}


def picture(transformers: Any, kind: str, side: int, **options: Any) -> tuple[nn.Module, dict]:
    config = getattr(transformers, f"{kind}Config")(**options)
    model = getattr(transformers, f"{kind}ForImageClassification")(config)
    x = torch.randn(2, 3, side, side)
    return model, {"pixel_values": x, "labels": torch.tensor([0, 1])}


GPT = {"vocab_size": WORDS, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
DRY = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
STILL = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
VIT = {"image_size": 32, "patch_size": 8}
SWIN = {"image_size": 32, "patch_size": 2, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}

MODELS = {
    "gpt2": ("text", "GPT2", "LMHeadModel", GPT | DRY | {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "gpt2-middle": (
        "text",
        "GPT2",
        "LMHeadModel",
        GPT | DRY | {"n_embd": 256, "n_layer": 4, "n_head": 4},
    ),
    "llama": ("text", "Llama", "ForCausalLM", SMALL | {"num_key_value_heads": 2}),
    "llama-middle": ("text", "Llama", "ForCausalLM", MIDDLE | {"num_key_value_heads": 2}),
    "bert": ("text", "Bert", "ForSequenceClassification", SMALL | STILL),
    "bert-middle": ("text", "Bert", "ForSequenceClassification", MIDDLE | STILL),
    "vit": ("picture", "ViT", 32, SMALL | VIT),
    "vit-middle": ("picture", "ViT", 64, MIDDLE | {"image_size": 64, "patch_size": 8}),
    "swin": ("picture", "Swin", 32, SWIN | {"embed_dim": 32}),
    "swin-middle": ("picture", "Swin", 32, SWIN | {"embed_dim": 96}),
    "convnext": (
        "picture",
        "ConvNext",
        64,
        {"hidden_sizes": [32, 64, 64, 64], "depths": [1, 1, 2, 1]},
    ),
    "convnext-middle": (
        "picture",
        "ConvNext",
        64,
        {"hidden_sizes": [64, 128, 256, 256], "depths": [1, 1, 3, 1]},
    ),
}


def built(name: str, models: dict[str, Any] = MODELS) -> tuple[nn.Module, dict]:
    transformers = pytest.importorskip("transformers")
    kind, first, second, options = models[name]
    options = {k: v for k, v in options.items() if not (kind == "picture" and k == "vocab_size")}
    torch.manual_seed(0)
    return {"text": text, "picture": picture}[kind](transformers, first, second, **options)


def prepared(model: nn.Module, policy: str) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        amp = mp.prepare(model, torch.optim.AdamW(model.parameters(), 1e-4), policy)
    return amp, [str(w.message) for w in seen if issubclass(w.category, MpcoreWarning)]


def loss_of(result: Any) -> torch.Tensor:
    found = getattr(result, "loss", None)
    return result.float().square().mean() if found is None else found


@pytest.mark.parametrize("name", MODELS)
def test_95_percent_of_multiply_adds_run_in_bfloat16_and_nothing_is_told(name: str) -> None:
    model, batch = built(name)
    amp, lines = prepared(model, "mixed_bfloat16")
    assert lines == []
    products = _Products()
    with products:
        result = amp.step(lambda *_: loss_of(model(**batch)), torch.zeros(1))
    assert bool(result.stepped)
    # Swin's relative positions are a mask that is trained: its attention is torch's plain one.
    if not name.startswith("swin"):
        assert products.low >= 0.95
        return
    seen = mp.observe(amp, torch.zeros(1), loss_fn=lambda *_: loss_of(model(**batch)))
    wide = [each for each in seen.work if each.dtype != "bfloat16"]
    assert wide
    assert {each.name for each in wide} == {"F.scaled_dot_product_attention"}
    attention = sum(each.count for each in wide)
    total = sum(seen.multiply_adds.values())
    assert seen.multiply_adds["bfloat16"] / (total - attention) == 1.0


DROPOUT = {
    "gpt2": ("text", "GPT2", "LMHeadModel", GPT | {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "llama": (
        "text",
        "Llama",
        "ForCausalLM",
        SMALL | {"num_key_value_heads": 2, "attention_dropout": 0.1},
    ),
    "bert": ("text", "Bert", "ForSequenceClassification", SMALL),
    "roberta": ("text", "Roberta", "ForSequenceClassification", SMALL),
    "vit": ("picture", "ViT", 32, SMALL | VIT | {"attention_probs_dropout_prob": 0.1}),
    "swin": MODELS["swin"],
    "swin-middle": MODELS["swin-middle"],
    "convnext": MODELS["convnext"],
}


@pytest.mark.parametrize("name", DROPOUT)
def test_prepare_with_an_example_says_which_multiply_adds_stay_float32(name: str) -> None:
    model, batch = built(name, DROPOUT)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        amp = mp.prepare(model, optimizer, "mixed_bfloat16", example=batch)
    lines = [str(w.message) for w in seen if issubclass(w.category, MpcoreWarning)]
    found = mp.observe(amp, torch.zeros(1), loss_fn=lambda *_: loss_of(model(**batch)))
    counts = found.multiply_adds
    wide = 1 - counts["bfloat16"] / sum(counts.values())
    if not wide:
        assert lines == []
        return
    (line,) = lines
    assert line.startswith(f"mixed_bfloat16: {100 * wide:.1f} % of the multiply-adds of `example`")
    assert "F.scaled_dot_product_attention" in line


TIMM = {
    "vit_tiny_patch16_224": ({"img_size": 64, "depth": 2}, "mixed_bfloat16"),
    # Its own bias makes scores float32: explain says so, and names this policy.
    "swin_tiny_patch4_window7_224": (
        {"img_size": 64, "depths": (2, 2), "num_heads": (2, 4), "embed_dim": 32},
        "mixed_bfloat16; full>lower layer=softmax",
    ),
    "convnext_atto": ({}, "mixed_bfloat16"),
}


@pytest.mark.parametrize("name", TIMM)
def test_timm_runs_in_bfloat16_under_the_policy_that_explain_names(timm: Any, name: str) -> None:
    options, policy = TIMM[name]
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=10, **options)
    x = torch.randn(2, 3, 64, 64)
    found = mp.explain(model, "mixed_bfloat16", x)
    if policy == "mixed_bfloat16":
        assert found.raises == ()
    else:
        (line,) = found.raises
        assert line.endswith(f"; it runs under {policy!r}")
    amp, lines = prepared(model, policy)
    assert lines == []
    products = _Products()
    with products:
        result = amp.step(lambda x: loss_of(model(x)), x)
    assert bool(result.stepped)
    assert products.low >= 0.95


def test_experts_of_mixtral_are_lowered_and_its_router_is_not() -> None:
    transformers = pytest.importorskip("transformers")
    options = SMALL | {"num_key_value_heads": 2, "num_local_experts": 4}
    model, _ = text(transformers, "Mixtral", "ForCausalLM", **options)
    _, lines = prepared(model, "mixed_bfloat16")
    assert lines == []
    plan = mp.explain(model, "mixed_bfloat16")
    kinds = {entry.type: entry.compute for entry in plan.layers if entry.param}
    assert kinds["MixtralExperts"] == "bfloat16"
    assert kinds["MixtralTopKRouter"] == kinds["MixtralRMSNorm"] == "float32"
