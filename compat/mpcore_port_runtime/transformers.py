"""Networks of transformers in ports: mindone's, with the habits of transformers on torch.

``port.transformers.BertModel`` is mindone's class of that name, which has the same layers under
the same names. What differs is made torch's here: outputs are ModelOutputs unless the
configuration says otherwise, a new network is in training mode, labels may be int64.

Source: transformers 4.57.1 and mindone 0.5.0, compared class by class on MindSpore's CPU build
(tests/port/test_mindone.py); kernels that this build lacks were made of others there.
"""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from mpcore_port_runtime import of_mindone
from mpcore_port_runtime.modules import named_parameters, requires_grad_
from mpcore_port_runtime.overridden import start_training

AUTOMATIC = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForMultipleChoice",
    "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
)
"""Classes that choose another one by a configuration."""

_USUAL = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
_WITH_PLACES = (*_USUAL, "ForQuestionAnswering")
_WITH_CHOICES = (*_WITH_PLACES, "ForMultipleChoice")
_FAMILIES = {
    "Albert": _WITH_CHOICES,
    "Bart": ("Model", "ForConditionalGeneration"),
    "Beit": ("Model", "ForImageClassification"),
    "Bert": (*_WITH_CHOICES, "ForNextSentencePrediction", "ForPreTraining"),
    "CLIP": (
        "Model",
        *("TextModel", "TextModelWithProjection"),
        *("VisionModel", "VisionModelWithProjection"),
    ),
    "Camembert": _WITH_PLACES,
    "Deberta": _WITH_PLACES,
    "DebertaV2": _WITH_PLACES,
    "DeiT": ("Model", "ForImageClassification"),
    "DistilBert": _WITH_CHOICES,
    "Electra": (*_WITH_PLACES, "ForPreTraining"),
    "GPT2": ("Model", "LMHeadModel", "ForSequenceClassification"),
    "MPNet": _WITH_PLACES,
    "OPT": ("Model", "ForCausalLM"),
    "Roberta": _USUAL,
    "T5": ("Model", "EncoderModel", "ForConditionalGeneration"),
    "XLNet": (
        "Model",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnsweringSimple",
        "LMHeadModel",
    ),
}
COMPARED = frozenset(family + kind for family, kinds in _FAMILIES.items() for kind in kinds)
"""Classes whose outputs, losses and gradients are transformers' on torch, with equal weights."""

_LABELS = ("labels", "start_positions", "end_positions", "next_sentence_label")
_OTHER_FORMS = (
    *("torch_dtype", "dtype", "device_map", "quantization_config", "load_in_8bit", "load_in_4bit"),
    *("attn_implementation", "output_loading_info", "state_dict"),
)
_RESIZED = (
    "embeddings of another size were not compared with transformers' (mindone 0.5.0 raises for "
    "most networks): give the configuration its `vocab_size`"
)
_OURS = "_has_habits_of_torch"


def __getattr__(name: str) -> Any:
    """Return one class by its name in transformers."""
    if name in AUTOMATIC:
        return _automatic(name)
    if name in COMPARED:
        return _network(_native(name))
    msg = f"{name} of mindone was not compared with transformers'"
    raise AttributeError(msg)


def _native(name: str) -> Any:
    return of_mindone.native("transformers", name)


@cache
def _network(native: Any) -> Any:
    """Return a class of mindone with torch's habits."""
    inputs = signature(native.construct)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # a class is made
        native.__init__(self, *args, **kwargs)
        _settle(self)
        start_training(self)

    def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = inputs.bind(self, *args, **kwargs).arguments
        named = given.pop("kwargs", {})
        given.pop("self")
        if "return_dict" in inputs.parameters and given.get("return_dict") is None:
            given["return_dict"] = self.config.use_return_dict
        for name in _LABELS:
            if isinstance(given.get(name), Tensor) and given[name].dtype == ms.int64:
                given[name] = given[name].astype(ms.int32)
        return native.construct(self, **given, **named)

    def resize_token_embeddings(self: Any, new_num_tokens: Any = None, *_: Any, **__: Any) -> Any:
        if new_num_tokens not in (None, self.config.vocab_size):
            raise NotImplementedError(_RESIZED)
        return self.get_input_embeddings()

    def save_pretrained(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        if not args and kwargs.get("state_dict") is None:
            kwargs["state_dict"] = dict(named_parameters(self))
        native.save_pretrained(self, save_directory, *args, **kwargs)
        of_mindone.say_torch(save_directory)

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        msg = f"{native.__name__}.generate of mindone was not compared with transformers'"
        raise NotImplementedError(msg)

    parts = {
        "__init__": __init__,
        "construct": construct,
        "gradient_checkpointing_enable": of_mindone.keep_activations,
        "resize_token_embeddings": resize_token_embeddings,
        "save_pretrained": save_pretrained,
        "generate": generate,
        "requires_grad_": requires_grad_,
        _OURS: True,
    }
    return of_mindone.network(native, parts, _check_form)


def _settle(network: Any) -> None:
    """Give the networks inside torch's habits too, and have layers add biases that came later.

    mindone sets ``decoder.bias`` of heads of masked words after the layer was made without one, and
    MindSpore's Dense asks ``has_bias``: the bias was left out of the sum, and had no gradient.
    """
    for _, cell in network.cells_and_names():
        kind: Any = type(cell)
        if isinstance(cell, nn.Dense):
            if not cell.has_bias and cell._params.get("bias") is not None:
                cell.has_bias, cell.bias_add = True, ops.BiasAdd()
        elif cell is not network and kind.__name__ in COMPARED and _is_native(kind):
            cell.__class__ = _network(kind)


def _is_native(kind: Any) -> bool:
    return kind.__module__.partition(".")[0] == "mindone" and not hasattr(kind, _OURS)


def _check_form(given: dict[str, Any]) -> None:
    other = [name for name in _OTHER_FORMS if given.get(name) is not None]
    if other:
        msg = (
            f"`{other[0]}` must be left out: mindone's meaning was not compared with transformers'"
        )
        raise NotImplementedError(msg)


@cache
def _automatic(name: str) -> Any:
    """Return a class that chooses networks as transformers does, of those that were compared."""

    def from_pretrained(*args: Any, **kwargs: Any) -> Any:
        _check_form(kwargs)
        return _taken(_native(name).from_pretrained(*args, **kwargs))

    def from_config(config: Any, **kwargs: Any) -> Any:
        _check_form(kwargs)
        return start_training(_taken(_native(name).from_config(config, **kwargs)))

    parts = {
        "from_pretrained": staticmethod(from_pretrained),
        "from_config": staticmethod(from_config),
        "__module__": __name__,
    }
    return type(name, (), parts)


def _taken(network: Any) -> Any:
    """Return a network of mindone as one of ours.

    Raises:
        NotImplementedError: its class was not compared with transformers'.
    """
    native: Any = type(network)
    if native.__name__ not in COMPARED:
        msg = f"{native.__name__} of mindone was not compared with transformers'"
        raise NotImplementedError(msg)
    network.__class__ = _network(native)
    _settle(network)
    return network
