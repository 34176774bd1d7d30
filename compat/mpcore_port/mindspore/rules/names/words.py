"""Names of transformers that hold no tensor: tokenizers, settings, arguments of a command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of, string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["WordsRule", "holds_no_tensor"]

_FREE = re.compile(
    r"transformers\.(\w+\.)*("
    r"\w*Tokenizer(Base|Fast)?|BatchEncoding|HfArgumentParser|"
    r"(Auto|Pretrained|PreTrained|Generation|Albert|Bart|Bert|Blip|CLIP|CLIPText|CLIPVision|"
    r"Deberta|DebertaV2|DistilBert|Electra|GPT2|GPTNeoX|Llama|Longformer|Mistral|Qwen2|Roberta|T5|"
    r"ViT|Wav2Vec2|Whisper|XLMRoberta|XLNet)Config|"
    r"glue_(compute_metrics|output_modes|processors|tasks_num_labels)|"
    r"DataProcessor|InputExample|InputFeatures|"
    r"(WEIGHTS|CONFIG|TF_WEIGHTS|SAFE_WEIGHTS|ADAPTER_CONFIG)_NAME|"
    r"logging(\.\w+)*|check_min_version|require_version)"
)


def holds_no_tensor(name: str) -> bool:
    """Return whether a full name of transformers is of words and settings alone."""
    return _FREE.fullmatch(name) is not None


class WordsRule(PortRule):
    """``tokenizer(text, return_tensors="pt")`` asks for tensors of torch."""

    name = "words"
    reason = "asks for tensors of torch: leave return_tensors out, and make ms.Tensor of the lists"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Refuse one call."""
        for arg in old.args:
            if arg.keyword is None or arg.keyword.value != "return_tensors":
                continue
            if string_of(arg.value) == "pt" or code_of(arg.value).endswith(".PYTORCH"):
                return new.with_changes(func=at.refuse(self, old.func, self.reason))
        return None
