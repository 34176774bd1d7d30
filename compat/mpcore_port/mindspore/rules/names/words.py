"""Names of transformers that hold no tensor: tokenizers, settings, arguments of a command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of, string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["WordsRule", "holds_no_tensor", "why_it_stays"]

_FREE = re.compile(
    r"transformers\.(\w+\.)*("
    r"\w*Tokenizer(Base|Fast)?|BatchEncoding|HfArgumentParser|"
    r"(Auto|Pretrained|PreTrained|Generation|Albert|Bart|Beit|Bert|Blip|CLIP|CLIPText|CLIPVision|"
    r"Deberta|DebertaV2|DeiT|DistilBert|Electra|GPT2|GPTNeoX|Llama|Longformer|MPNet|Mistral|OPT|"
    r"Qwen2|Roberta|Swin|T5|ViT|Wav2Vec2|Whisper|XLMRoberta|XLNet)Config|"
    r"glue_(compute_metrics|output_modes|processors|tasks_num_labels)|"
    r"DataProcessor|InputExample|InputFeatures|"
    r"(WEIGHTS|CONFIG|TF_WEIGHTS|SAFE_WEIGHTS|ADAPTER_CONFIG)_NAME|"
    r"logging(\.\w+)*|check_min_version|require_version)"
)


_MEASURES = re.compile(r"(torch_fidelity|cleanfid|pytorch_fid)(\.\w+)*")
_NOT_OF_TENSORS = (
    "words, settings and arguments of transformers hold no tensor, unless return_tensors asks for "
    "some; not run here"
)
_OF_FILES = (
    "it measures pictures of folders, and gives numbers: it stays, with a torch of its own that "
    "has to be installed; on a machine without CUDA it has to be told so; not run here"
)


def holds_no_tensor(name: str) -> bool:
    """Return whether a full name is of words, settings, or pictures in files alone."""
    return _FREE.fullmatch(name) is not None or _MEASURES.fullmatch(name) is not None


def why_it_stays(name: str) -> str:
    """Return what is said of a full name that holds no tensor."""
    return _OF_FILES if _MEASURES.fullmatch(name) else _NOT_OF_TENSORS


class WordsRule(PortRule):
    """``tokenizer(text, return_tensors="pt")`` gives tensors of MindSpore."""

    name = "words"
    reason = "asks for tensors of torch: leave return_tensors out, and make ms.Tensor of the lists"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Ask for arrays, and make tensors of them; refuse what asks for tensors later."""
        if isinstance(old.func, cst.Attribute) and old.func.attr.value in _FORMATS:
            return self._format(old, new, at)
        for place, arg in enumerate(old.args):
            if arg.keyword is None or arg.keyword.value != "return_tensors":
                continue
            if string_of(arg.value) != "pt" and not code_of(arg.value).endswith(".PYTORCH"):
                continue
            name = code_of(old.func).rpartition(".")[2]
            if _LATER.search(name) or name in at.names.functions or name in at.names.classes:
                return new.with_changes(func=at.refuse(self, old.func, self.reason))
            args = list(new.args)
            args[place] = args[place].with_changes(value=cst.SimpleString('"np"'))
            asked = new.with_changes(args=args)
            made = cst.parse_expression(wording(at, "port.of_words()"))
            changed = made.with_changes(args=[cst.Arg(asked)])
            at.unproven(self, old, _ARRAYS)
            return changed
        return None

    def _format(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Have a table of ``datasets`` give arrays, of which batches make tensors."""
        places = [
            place
            for place, arg in enumerate(old.args)
            if (arg.keyword is None and place == 0)
            or (arg.keyword is not None and arg.keyword.value == "type")
        ]
        if not places or string_of(old.args[places[0]].value) not in ("torch", "pt"):
            return None
        args = list(new.args)
        args[places[0]] = args[places[0]].with_changes(value=cst.SimpleString('"numpy"'))
        changed = new.with_changes(args=args)
        at.unproven(self, old, _TABLES, changed)
        return changed


_FORMATS = ("set_format", "with_format")
_TABLES = "a table gives arrays of numpy, and DataLoader makes tensors of them"
_LATER = re.compile(r"Collator|^(from_pretrained|partial)$")
_ARRAYS = (
    "the package is asked for arrays of numpy, and tensors are made of them; processors that make "
    "tensors of torch alone raise"
)
