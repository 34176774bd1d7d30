"""Networks of transformers become mindone's where these were compared, and say so by line."""

from __future__ import annotations

import sys
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mpcore_port.engine import port_tree
from mpcore_port.mindspore.tables import table
from mpcore_port.report import needs
from mpcore_port.source import walk
from mpcore_port.targets import Options
from mpcore_port_runtime import transformers

from .ports import TARGET, ported

TUNED = """import torch
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

def start(folder, steps):
    model = BertForSequenceClassification.from_pretrained(folder, num_labels=3)
    no_decay = ["bias", "LayerNorm.weight"]
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
         "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
         "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    return model, optimizer, get_linear_schedule_with_warmup(optimizer, 1, steps)

def scratch():
    return BertForSequenceClassification(BertConfig(num_labels=3))
"""


def test_networks_that_were_compared_are_mindones_and_never_called_exact():
    """The lines that make them are unproven and name the package; settings stay transformers'."""
    found = ported(TUNED)
    assert "port.transformers.BertForSequenceClassification.from_pretrained(folder" in found.text
    assert "port.transformers.BertForSequenceClassification(BertConfig(" in found.text
    assert "from transformers import BertConfig\n" in found.text
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    said = [edit for edit in found.edits if "mindone 0.5" in edit.reason]
    assert {edit.line for edit in said} == {5, 17}
    assert {edit.kind for edit in said} == {"unproven"}
    assert all("not run on Ascend" in edit.reason for edit in said)


def test_the_report_names_mindone_among_what_a_port_needs(tmp_path):
    """A file without such a network does not need it."""
    (tmp_path / "tuned.py").write_text(TUNED, encoding="utf-8")
    assert "mindone" in needs(port_tree(walk(tmp_path), TARGET, Options()))
    (tmp_path / "tuned.py").write_text("import torch\nx = torch.ones(3)\n", encoding="utf-8")
    assert "mindone" not in needs(port_tree(walk(tmp_path), TARGET, Options()))


@pytest.mark.parametrize(
    "line",
    [
        "from transformers.models.bert.modeling_bert import BertModel",
        "from transformers.models.bert import BertModel",
        "from transformers.modeling_bert import BertModel",
        "from transformers import BertModel",
    ],
)
def test_a_class_is_known_wherever_it_is_taken_from(line):
    """Before transformers 4 no folder held the files that define networks."""
    found = ported(f"import torch\n{line}\nnet = BertModel.from_pretrained('bert-base-uncased')\n")
    assert "port.transformers.BertModel.from_pretrained('bert-base-uncased')" in found.text


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "from transformers import FunnelModel\nnet = FunnelModel.from_pretrained('x')\n",
            "mindone",
        ),
        ("from transformers import BertModel\nclass A(BertModel):\n    pass\n", "on top of one"),
        (
            "from transformers import PreTrainedModel\nclass A(PreTrainedModel):\n    pass\n",
            "mindone",
        ),
    ],
)
def test_what_was_not_compared_is_refused_and_names_the_way_out(script, why):
    """Other classes, and classes of a script's own on top of one."""
    refused = [edit for edit in ported(f"import torch\n{script}").edits if edit.kind == "refused"]
    assert refused
    assert any(why in edit.reason for edit in refused)


def test_the_table_has_what_the_support_takes():
    """No class is promised that raises, none is kept back that was compared."""
    classes = (name for name in table("transformers") if name.count(".") == 1)  # no functions
    rows = {name.split(".")[1] for name in classes}
    assert rows == transformers.COMPARED | set(transformers.AUTOMATIC)


@pytest.mark.parametrize("kind", ["Bart", "Beit", "DebertaV2", "DeiT", "MPNet", "OPT", "XLNet"])
def test_a_network_and_its_settings_are_taken_together(kind):
    """A configuration stays transformers' own."""
    script = f"from transformers import {kind}Config, {kind}Model\n"
    script += f"net = {kind}Model({kind}Config())\n"
    found = ported(f"import torch\n{script}")
    assert f"port.transformers.{kind}Model({kind}Config())" in found.text
    assert f"from transformers import {kind}Config\n" in found.text
    assert not [edit for edit in found.edits if edit.kind == "refused"]


# --- the support, beside classes that stand for mindone's ------------------------------------


class Config:
    """What a configuration of transformers is asked for."""

    use_return_dict = True


class BertModel(nn.Cell):
    """A network as mindone has them: it gives a tuple unless it is asked for more."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.predicted = nn.Dense(2, 3, has_bias=False)
        self.predicted.bias = Parameter(ops.ones(3), name="bias")
        self.set_train(False)

    def construct(self, x=None, labels=None, return_dict=False, **kwargs):
        del kwargs
        out = {"logits": self.predicted(x), "labels": labels}
        return out if return_dict else tuple(out.values())

    @classmethod
    def from_pretrained(cls, config):
        made = cls(config)
        made.set_train(False)
        return made


class FunnelModel(BertModel):
    """One that was not compared."""


class BertForMaskedLM(nn.Cell):
    """A network with another inside."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.bert = BertModel(config)

    def construct(self, x=None, labels=None, return_dict=None):
        return self.bert(x, labels, return_dict=return_dict)


class AutoModel:
    """A class that chooses."""

    @classmethod
    def from_config(cls, config):
        return config.chosen(config)

    from_pretrained = from_config


@pytest.fixture
def mindone(monkeypatch):
    """A package with these classes in place of mindone."""
    package, inside = types.ModuleType("mindone"), types.ModuleType("mindone.transformers")
    package.transformers = inside
    for kind in (BertModel, FunnelModel, BertForMaskedLM, AutoModel):
        monkeypatch.setattr(kind, "__module__", "mindone.transformers")
        setattr(inside, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "mindone", package)
    monkeypatch.setitem(sys.modules, "mindone.transformers", inside)


X = Tensor(np.ones((1, 2), np.float32))
INT64 = Tensor(np.zeros(1, np.int64))


@pytest.mark.usefixtures("mindone")
def test_outputs_modes_labels_and_later_biases_are_torchs():
    """A new network trains, gives its outputs by name, takes int64 labels, adds its bias."""
    net = transformers.BertModel(Config())
    assert net.training
    out = net(X, labels=INT64)
    assert out["labels"].dtype == ms.int32
    wanted = X.asnumpy() @ net.predicted.weight.asnumpy().T + 1.0
    np.testing.assert_allclose(out["logits"].asnumpy(), wanted, rtol=1e-5)
    assert isinstance(net(X, return_dict=False), tuple)
    assert not transformers.BertModel.from_pretrained(Config()).training
    assert type(net).__name__ == "BertModel"
    assert isinstance(net, transformers.BertModel)


@pytest.mark.usefixtures("mindone")
def test_a_network_inside_of_another_is_of_the_same_class():
    """``isinstance(net.bert, BertModel)`` and its outputs by name."""
    net = transformers.BertForMaskedLM(Config())
    assert isinstance(net.bert, transformers.BertModel)
    assert set(net(X)) == {"logits", "labels"}
    assert set(net.bert(X)) == {"logits", "labels"}


@pytest.mark.usefixtures("mindone")
def test_a_class_that_chooses_takes_those_that_were_compared_and_no_other():
    """What it may choose no line says: it raises when it runs."""
    config = Config()
    config.chosen = BertModel
    net = transformers.AutoModel.from_config(config)
    assert net.training
    assert set(net(X)) == {"logits", "labels"}
    assert not transformers.AutoModel.from_pretrained(config).training
    config.chosen = FunnelModel
    with pytest.raises(NotImplementedError, match="FunnelModel of mindone was not compared"):
        transformers.AutoModel.from_config(config)


@pytest.mark.usefixtures("mindone")
def test_what_was_not_compared_raises_when_it_runs():
    """Dtypes of weights, the other classes, generation."""
    with pytest.raises(NotImplementedError, match="`torch_dtype` must be left out"):
        transformers.BertModel.from_pretrained(Config(), torch_dtype=ms.float16)
    with pytest.raises(AttributeError, match="FunnelModel of mindone was not compared"):
        _ = transformers.FunnelModel
    with pytest.raises(NotImplementedError, match="generate of mindone was not compared"):
        transformers.BertModel(Config()).generate(X)


def test_without_mindone_the_package_is_named(monkeypatch):
    """The first network that is asked for says what is missing."""
    monkeypatch.setitem(sys.modules, "mindone", None)
    with pytest.raises(ModuleNotFoundError, match="mindone"):
        _ = transformers.BertModel
