"""What rules share: our names in the port, the kinds of values, how a mapping is noted."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.tables import FILES, Mapping, mint_layers, table
from mpcore_port.names import code_of, dotted, string_of
from mpcore_port.packages import package_of
from mpcore_port.rule import Rule
from mpcore_port.values import is_network_base, made_by_others

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_port.rule import At
    from mpcore_port.targets import Options

__all__ = [
    "FULL_GRAPH",
    "SETTINGS",
    "PortRule",
    "by_name",
    "copied",
    "has_unknown_base",
    "is_given_as_network",
    "is_leaf",
    "is_module",
    "is_module_class",
    "is_network_class",
    "is_next",
    "is_number_of_numpy",
    "is_numpy_count",
    "is_plain_object",
    "is_port",
]
__all__ += [
    "is_whole_network",
    "lineage",
    "may_be_network",
    "named",
    "need",
    "trained_leaves",
    "unmoved",
    "wants_gradient",
    "wording",
]

_NOT_RUN = "mint has no kernel for most layers on CPU: not run, not compared"
_LOADER = "torch.utils.data.DataLoader"
_WORKER = "torch.utils.data.get_worker_info"
_OWN_WORKERS = "workers of MindSpore load whole batches, and are not numbered"
_GENERATOR = (
    "GeneratorDataset's workers load the batches; without worker_init_fn; shuffling draws other "
    "random numbers"
)
_IMPORTS = {
    "ms": "import mindspore as {}",
    "nn": "from mindspore import nn",
    "ops": "from mindspore import ops",
    "mint": "from mindspore import mint",
    "port": "import mpcore_port_runtime as {}",
    "mp": "import mpcore as {}",
    "optim": "from mindspore.experimental import optim",
    "math": "import math",
}
_OURS_IMPORTED = re.compile(r"^\s*(from|import)\s+(mindspore|mpcore_port_runtime)\b", re.M)
_TORCH = re.compile(r"^\s*(from\s+torch|import\s+(.*[\s,])?torch)\b", re.M)
_OURS = re.compile(r"(?<![\w.'\"])(" + "|".join(_IMPORTS) + r")(?=\.)")
_MODULE_NAME = re.compile(
    r"(^|[_.])(model|net|network|generator|discriminator|encoder|decoder|ddp)\w*$", re.I
)
# ``net_target``, ``model_pred``, ``encoder_hidden_states``: what a network is given, or gives.
_DATA_NAME = re.compile(
    r"_(in|out|input|output|pred|prediction|target|label|logit|score|prob|loss|hidden|state|id|mask"
    r"|token|latent|noise|sample|image|img|batch|data|feat|feature|embed|embedding|grad|length|len"
    r"|time|timestep|dtype|device|kwarg|arg|name|path|dim|size|x|y)s?$",
    re.I,
)

_GIVEN_AS = re.compile(r"(\w+_)?(model|net|network|generator|discriminator|encoder|decoder)", re.I)


SETTINGS = re.compile(r"(^|[._])(args?|cfg|conf|config|flags|hps?|hparams|opts?|options)$", re.I)
"""What scripts call their settings; they have attributes of any name."""
FULL_GRAPH = ".jit(fullgraph=True)\n"
"""How a port has MindSpore compile a step; not the full graph has no gradient of what is left."""


class PortRule(Rule):
    """A rule of this target; leaves alone what is a port already."""

    def idle(self, at: At) -> bool:
        """Whether the script is a port."""
        return at.once(_is_port)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """See ``act``; what an import names is no attribute of anything."""
        if isinstance(old, cst.Attribute) and _is_imported(old, at):
            return None
        return self.act(old, new, at)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Do what ``Rule.leave`` promises."""
        raise NotImplementedError


def _is_imported(node: cst.Attribute, at: At) -> bool:
    parent = at.names.parents.get(node)
    while isinstance(parent, cst.Attribute):  # ``from tools.device.names import x``
        parent = at.names.parents.get(parent)
    return isinstance(parent, (cst.ImportFrom, cst.ImportAlias))


def _is_port(at: At) -> bool:
    return is_port(at.source.text)


def is_port(text: str) -> bool:
    """Return whether a script is in MindSpore's terms already."""
    return bool(_OURS_IMPORTED.search(text) and not _TORCH.search(text))


def _aliases(_: At) -> dict[str, str]:
    """Return what our modules are called in this port, as far as it imports them."""
    return {}


def by_name(name: str, options: Options | None = None) -> Mapping | None:
    """Return the row of a full name of torch, as the user's options want it."""
    last = name.removeprefix("torch.nn.")
    if options is not None and options.api == "mint" and last in mint_layers():
        return Mapping(name, to=f"mint.nn.{last}", drop=("device", "inplace"), effect=_NOT_RUN)
    if options is not None and options.data == "generator" and name == _LOADER:
        row = table("names")[name]
        kept = tuple(argument for argument in row.drop if argument != "num_workers")
        to = "port.GeneratorLoader"
        return replace(row, to=to, drop=kept, positional=5, effect=_GENERATOR)
    if options is not None and options.data == "generator" and name == _WORKER:
        return Mapping(name, refuse_all=_OWN_WORKERS)
    for spelled in (name, _usual(name)):
        for file in FILES:
            found = table(file).get(spelled)
            if found is not None:
                return found
    return None


_PLACES = (
    (
        re.compile(r"^torch\.nn\.modules\.linear\.NonDynamicallyQuantizableLinear$"),
        "torch.nn.Linear",
    ),
    (re.compile(r"^torch\.nn\.modules\.(?:\w+\.)?([A-Z]\w*)$"), r"torch.nn.\1"),
    (
        re.compile(r"^torch\.utils\.data\.(?:dataloader|dataset|sampler)\.(\w+)$"),
        r"torch.utils.data.\1",
    ),
    (re.compile(r"^torch\.optim\.(?!lr_scheduler)[a-z]\w*\.([A-Z]\w*)$"), r"torch.optim.\1"),
    (
        re.compile(r"^torch\.nn\.parallel\.\w+\.(Distributed)?DataParallel$"),
        r"torch.nn.parallel.\1DataParallel",
    ),
    (
        re.compile(r"^torch\.nn\.parallel\.\w+\.(replicate|scatter|parallel_apply|gather)$"),
        r"torch.nn.parallel.\1",
    ),
    (re.compile(r"^torch\.npu\.(\w+)"), r"torch.cuda.\1"),
    (
        re.compile(r"^torch\.utils\.data\._utils\.collate\.default_collate$"),
        "torch.utils.data.default_collate",
    ),
    (
        re.compile(r"^torchvision\.transforms\.v2\.(?:functional\.)?InterpolationMode\b"),
        "torchvision.transforms.InterpolationMode",
    ),
    (re.compile(r"^torchvision\.transforms\.v2\.(\w+)"), r"torchvision.transforms.\1"),
    (
        re.compile(r"^torchvision\.transforms\.functional\.InterpolationMode\b"),
        "torchvision.transforms.InterpolationMode",
    ),
    (re.compile(r"^torchvision\.transforms\.transforms\.(\w+)"), r"torchvision.transforms.\1"),
    (
        re.compile(
            r"^torchvision\.datasets\.(?:folder|cifar|mnist|fakedata|coco|voc|svhn|stl10|vision)\.([A-Z]\w*)$"
        ),
        r"torchvision.datasets.\1",
    ),
    (re.compile(r"^torch\.nn\.utils\.clip_grad\.(\w+)$"), r"torch.nn.utils.\1"),
    (re.compile(r"^apex\.parallel\.(?:\w+\.)?SyncBatchNorm$"), "torch.nn.SyncBatchNorm"),
    (
        re.compile(r"^torch\.random\.(get_rng_state|initial_seed|manual_seed|seed|set_rng_state)$"),
        r"torch.\1",
    ),
    (re.compile(r"^torch\.cuda\.(?:random|memory)\.(\w+)$"), r"torch.cuda.\1"),
    (re.compile(r"^torch\.autograd\.variable\.Variable$"), "torch.autograd.Variable"),
    (re.compile(r"^torch\._six\.inf$"), "torch.inf"),  # up to 1.12
    (re.compile(r"^torch\.concatenate$"), "torch.cat"),
    (re.compile(r"^torch\.arc((?:cos|sin|tan)h?|tan2)$"), r"torch.a\1"),
    (re.compile(r"^torch\.(conv(?:_transpose)?[123]d)$"), r"torch.nn.functional.\1"),
    (  # old spellings of the same
        re.compile(
            r"^torch\.nn\.init\.(uniform|normal|constant|(?:xavier|kaiming)_(?:uniform|normal)|orthogonal)$"
        ),
        r"torch.nn.init.\1_",
    ),
    (re.compile(r"^torch\.nn\.NLLLoss2d$"), "torch.nn.NLLLoss"),
    (re.compile(r"^torchvision\.transforms\.Scale$"), "torchvision.transforms.Resize"),
    (
        re.compile(r"^torchvision\.transforms\.RandomSizedCrop$"),
        "torchvision.transforms.RandomResizedCrop",
    ),
    (
        re.compile(r"^torch\.distributions\.(?!Distribution\.)\w+\.(\w+)$"),
        r"torch.distributions.\1",
    ),
    (
        re.compile(r"^timm\.(?:models\.)?layers(?:\.\w+)?\.trunc_normal_$"),
        "torch.nn.init.trunc_normal_",
    ),
    (re.compile(r"^timm\.(?:models\.)?layers(?:\.(?!models)\w+)?\.(\w+)$"), r"timm.layers.\1"),
    (
        re.compile(r"^timm\.models\.(?:_?features_fx|fx_features)\.(register_notrace_\w+)$"),
        r"timm.layers.\1",
    ),
    (  # what timm's networks themselves take from its layers
        re.compile(r"^timm\.models\.\w+\.((?:Patch|Drop)\w+|(?:Conv)?Mlp|Attention|to_\dtuple)$"),
        r"timm.layers.\1",
    ),
    (
        re.compile(r"^timm\.models\.(?!layers)\w+\.trunc_normal_$"),
        "torch.nn.init.trunc_normal_",
    ),
    (re.compile(r"^timm\.(data|loss|optim|scheduler|utils)\.\w+\.(\w+)$"), r"timm.\1.\2"),
    (
        re.compile(
            r"^timm\.models\._?(?:builder|factory|helpers|manipulate|pretrained|registry)\.(\w+)$"
        ),
        r"timm.models.\1",
    ),
    (re.compile(r"^ema_pytorch\.ema_pytorch\.(\w+)$"), r"ema_pytorch.\1"),
    (re.compile(r"^torch_ema\.ema\.(\w+)$"), r"torch_ema.\1"),
    (
        re.compile(r"^accelerate\.(?:state|utils|utils\.dataclasses)\.DistributedType\b"),
        "accelerate.DistributedType",
    ),
    (re.compile(r"^transformers\.optimization\.(\w+)$"), r"transformers.\1"),
    (  # classes are also taken from where they are defined: up to 3.5 no folder held them
        re.compile(r"^transformers\.(?:models\.\w+\.)?modeling_\w+\.([A-Z]\w*(?:\.\w+)?)$"),
        r"transformers.\1",
    ),
    (re.compile(r"^transformers\.models\.\w+\.([A-Z]\w*(?:\.\w+)?)$"), r"transformers.\1"),
    (
        re.compile(r"^diffusers\.(?:models|schedulers)(?:\.[a-z]\w*)*\.([A-Z]\w*(?:\.\w+)?)$"),
        r"diffusers.\1",
    ),
    (re.compile(r"^einops\.einops\.(\w+)$"), r"einops.\1"),
    (re.compile(r"^torch\.distributed\.distributed_c10d\.(\w+)$"), r"torch.distributed.\1"),
)


@lru_cache(maxsize=4096)
def _usual(name: str) -> str:
    """Return the name that torch's pages have for one that is taken from where it is defined."""
    for pattern, spelled in _PLACES:
        name = pattern.sub(spelled, name)
    return name


def need(at: At, alias: str, after: str = "mindspore") -> str:
    """Have one of our modules imported; return its name in the port."""
    taken = at.once(_aliases)
    if alias not in taken:
        taken[alias] = f"{alias}_" if _is_taken(at, alias) else alias
    name = taken[alias]
    line = _IMPORTS[alias].format(name)
    if name != alias and "{}" not in _IMPORTS[alias]:
        line = f"{line} as {name}"
    at.need(line, after)
    return name


def _is_taken(at: At, alias: str) -> bool:
    scopes = [at.names.top, *at.names._scopes.values()]
    for scope in scopes:
        for binding in scope.bindings.get(alias, []):
            root = binding.qualified.partition(".")[0]
            if binding.kind != "import" or root not in (
                ("torch", "mindspore", "mpcore", "mpcore_port_runtime", "math")
            ):
                return True
    return False


def wording(at: At, code: str) -> str:
    """Return code of ours with the names that our modules have in this port."""
    return _OURS.sub(
        lambda found: found[1] if _is_the_scripts(at, found) else need(at, found[1]), code
    )


def _is_the_scripts(at: At, found: re.Match[str]) -> bool:
    """Return whether code of ours holds what the script calls so: ``port.shown(optim.groups)``."""
    if not found.start() or not _is_taken(at, found[1]):
        return False
    asked = re.match(r"\.\w+", found.string[found.end() :])
    written = rf"(?<![\w.]){found[1]}{re.escape(asked[0])}\b" if asked else ""
    return bool(written and re.search(written, at.source.around))


_OLDER = "port.old_reduction"


def named(at: At, row: Mapping) -> Mapping:
    """Return a row in the words of this port, and have what it needs imported."""
    for name, module in row.imports.items():
        at.need(f"from {module} import {name}", "mindspore")
    return replace(
        row,
        to=wording(at, row.to),
        heir=wording(at, row.heir),
        given={name: wording(at, other) for name, other in row.given.items()},
        expr=wording(at, row.expr),
        bare=wording(at, row.bare),
        stars=wording(at, row.stars),
        older=wording(at, _OLDER) if any(p.name == "size_average" for p in row.params) else "",
        missing={name: wording(at, other) for name, other in row.missing.items()},
    )


# What these give is a tensor: ``F.one_hot(y, 10).float()`` is no network's.
_OF_TENSORS = (
    *("torch.nn.functional.", "torch.nn.init.", "torch.nn.utils.rnn.", "torch.nn.utils.clip_"),
    "torch.nn.utils.parameters_to_vector",
)


def is_module(at: At, node: cst.BaseExpression) -> bool:
    """Return whether ``node`` is likely a network: made as one, or called as one."""
    if isinstance(node, cst.Attribute) and at.names.is_accelerator(node.value):
        return False  # ``accelerator.unwrap_model``
    own = at.names.class_named(node)
    if own is not None:
        return is_network_class(own, at)
    made = at.names.call_names(node)
    if any(name.startswith("torch.nn.") and not name.startswith(_OF_TENSORS) for name in made):
        return True
    inner = unmoved(next(iter(at.names.origins(node)), None))
    if inner is not None and at.names.class_named(inner) is not None:
        return is_module(at, inner)
    if (of := copied(at, node)) is not None:
        given = [arg.value for arg in of.args] if isinstance(of, cst.Call) else []
        return any(is_module(at, one) for one in (of, *given))  # deepcopy(de_parallel(net))
    text = dotted(node)
    if text in at.once(_with_parameters):
        return True
    is_data = isinstance(node, cst.Name) and _DATA_NAME.search(node.value) is not None
    return not is_data and bool(_MODULE_NAME.search(text or code_of(node)))


def is_given_as_network(arg: cst.Arg) -> bool:
    """Return whether the keyword of an argument says that it is a network: ``generator=self.G``."""
    if arg.keyword is None or _GIVEN_AS.fullmatch(arg.keyword.value) is None:
        return False
    root = dotted(arg.value).rpartition(".")[0]
    return SETTINGS.search(root) is None


def is_network_class(node: cst.ClassDef, at: At) -> bool:
    """Return whether a class of the file is a network: torch's, or one that takes what nets do.

    Of a base that this file does not show, ``forward`` with an input says it, or two methods of
    a network that it calls of itself, and that no class of the file has.
    """
    if is_module_class(node, at):
        return True
    if not has_unknown_base(node, at):
        return False
    return any(map(_takes_input, _own_forward(node))) or len(_asked_of_self(node, at)) > 1


_OF_NETWORKS = frozenset(
    ("parameters", "named_parameters", "modules", "named_modules", "buffers", "named_buffers")
)


def _asked_of_self(node: cst.ClassDef, at: At) -> set[str]:
    """Return the methods of torch's networks that a class calls of itself and does not define."""
    asked = {
        name
        for name in _OF_NETWORKS
        for call in at.names.callers(name)
        if dotted(call.func) == f"self.{name}" and at.names.enclosing(call, cst.ClassDef) is node
    }
    return {name for name in asked if name not in at.names.functions}


def is_module_class(node: cst.ClassDef, at: At) -> bool:
    """Return whether a class of the file, or one that is made of it, is surely torch's network."""
    every = [one for named in at.names.classes.values() for one in named]
    heirs = [one for one in every if node in lineage(one, at)]
    return any(is_network_base(base) for one in heirs for base in at.names.bases(one))


def lineage(node: cst.ClassDef, at: At) -> list[cst.ClassDef]:
    """Return a class and the classes of the file that it is made of."""
    found = [node]
    for one in found:
        named = [dotted(base.value) for base in one.bases]
        found += [c for name in named for c in at.names.classes.get(name, ()) if c not in found]
    return found


def has_unknown_base(node: cst.ClassDef, at: At) -> bool:
    """Return whether a base of a class, or of those that it is made of, is of another file."""
    for base in (base.value for one in lineage(node, at) for base in one.bases):
        name, text = at.names.qualified(base), dotted(base)
        if name is not None and _is_foreign(name):
            return True
        of_star = bool(at.names.stars) and text not in at.names.classes
        if name is None and (not text or of_star):
            return True
    return False


def _is_foreign(name: str) -> bool:
    """Return whether a full name is neither torch's nor of a package that has no networks."""
    if name.startswith("."):
        return True
    package = package_of(name)
    return package is not None and package.world != "neutral"


def _own_forward(node: cst.ClassDef) -> list[cst.FunctionDef]:
    body = node.body.body if isinstance(node.body, cst.IndentedBlock) else ()
    return [f for f in body if isinstance(f, cst.FunctionDef) and f.name.value == "forward"]


def _takes_input(function: cst.FunctionDef) -> bool:
    given = function.params
    named = (*given.posonly_params, *given.params, *given.kwonly_params)
    return len(named) > 1 or isinstance(given.star_arg, cst.Param)


def _with_parameters(at: At) -> set[str]:
    """Return the names that are asked for all their parameters, as networks alone are."""
    funcs = [call.func for call in at.names.calls if not call.args]
    return {
        dotted(func.value)
        for func in funcs
        if isinstance(func, cst.Attribute)
        and func.attr.value in ("parameters", "named_parameters")
        and dotted(func.value) not in ("", "self")
    }


_OVER_PARAMETERS = re.compile("param|module|children|model|weights")


def is_leaf(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a name holds a tensor that the script wants a gradient of, no Parameter."""
    text = dotted(node)
    if not text or any("Parameter" in name for name in at.names.call_names(node)):
        return False
    origins = list(at.names.origins(node))
    if origins and all(id(origin) in at.once(trained_leaves) for origin in origins):
        return False
    name = re.escape(text)
    wants = rf"(?<![\w.]){name}\.requires_grad(_\((True)?\)|\s*=\s*True)"
    made = rf"(?<![\w.]){name}\s*=(?!=).*\brequires_grad(_\((True)?\)|\s*=\s*True)"
    if not re.search(f"{wants}|{made}", at.source.text):
        return False
    found = at.names.scope(node).find(text) if isinstance(node, cst.Name) else []
    loops = (b.node for b in found if isinstance(b.node, (cst.For, cst.CompFor)))
    return not any(_OVER_PARAMETERS.search(code_of(loop.iter)) for loop in loops)


_COUNTS = ("amax", "ceil", "floor", "int32", "int64", "max", "prod", "sum")
_SPACE_SIZE = re.compile(r"_space\b.*\.n$")


def is_numpy_count(node: Any, at: At) -> bool:
    """Return whether a size may be numpy's: MindSpore's layers take numbers of Python alone."""
    return _any_part(node, at, _counts)


def _any_part(node: Any, at: At, asked: Callable[[Any, At], bool]) -> bool:
    """Return whether something holds of a part of a sum or product, or of where one comes from."""
    waiting, seen = [node], set[cst.CSTNode]()
    while waiting:
        part = waiting.pop()
        waiting += [one for one in _added(part, at) if one not in seen]
        for one in (part, *at.names.origins(part)):
            if one in seen:
                continue  # a size that is computed from itself
            seen.add(one)
            if isinstance(one, cst.BinaryOperation):
                waiting += [one.left, one.right]
            elif isinstance(one, cst.UnaryOperation):
                waiting.append(one.expression)
            elif asked(one, at):
                return True
    return False


def _added(node: Any, at: At) -> list[Any]:
    """Return what ``n += m`` adds to a name."""
    if not isinstance(node, cst.Name):
        return []
    found = at.names.scope(node).find(node.value)
    return [one.node.value for one in found if isinstance(one.node, cst.AugAssign)]


def _counts(node: Any, at: At) -> bool:
    """Return whether an expression is a number of numpy by its outermost call, or of a space."""
    if isinstance(node, cst.Attribute):
        return _SPACE_SIZE.search(code_of(node)) is not None
    if not isinstance(node, cst.Call):
        return False
    if dotted(node.func).rpartition(".")[2] == "number" and len(node.args) == 1:
        return _counts(node.args[0].value, at)  # the runtime's, of a number of numpy
    module, _, last = (at.names.called(node) or "").rpartition(".")
    if module == "numpy":
        return last in _COUNTS
    if module or not isinstance(node.func, cst.Attribute) or node.args:
        return False
    held = node.func.value
    of_numpy = (
        (at.names.called(held) or "").startswith("numpy.")
        if isinstance(held, cst.Call)
        else "_space" in code_of(held)
    )
    return node.func.attr.value in ("max", "prod", "sum") and of_numpy


def is_number_of_numpy(node: Any, at: At) -> bool:
    """Return whether a number is perhaps numpy's: MindSpore slices by Python's alone."""
    return _any_part(node, at, _is_of_numpy)


def _is_of_numpy(node: Any, at: At) -> bool:
    return isinstance(node, cst.Call) and (at.names.called(node) or "").startswith("numpy.")


_FACTORIES = ("empty", "full", "ones", "rand", "randn", "tensor", "zeros")


def trained_leaves(at: At) -> set[int]:
    """Return the calls that make tensors which an optimizer of the file moves, by identity.

    Of ``torch.zeros(1).to(device)`` the call that makes it, and the whole.
    """
    found: set[int] = set()
    for call in at.names.calls:
        called = at.names.called(call) or ""
        if not called.startswith("torch.optim.") or ".lr_scheduler." in called or not call.args:
            continue
        for element in _elements(call.args[0].value):
            origins = list(at.names.origins(element))
            makers = [_maker(one, at) for one in origins]
            if origins and all(makers):
                found |= {id(one) for one in (*origins, *makers)}
    return found


def _elements(node: Any) -> list[Any]:
    """Return what an optimizer is given one by one: in a list, in groups, in sums of lists."""
    if isinstance(node, (cst.List, cst.Tuple)):
        parts = [one.value for one in node.elements]
        return [inner for part in parts for inner in (_elements(part) or [part])]
    if isinstance(node, cst.BinaryOperation):
        return [*_elements(node.left), *_elements(node.right)]
    if isinstance(node, cst.Dict):
        pairs = [one for one in node.elements if isinstance(one, cst.DictElement)]
        held = [one.value for one in pairs if string_of(one.key) == "params"]
        return [inner for one in held for inner in (_elements(one) or [one])]
    return []


_DTYPE = re.compile(r"\btorch\.(float|double|half|bfloat|int|long|short)|\bdtype\b")


def _maker(node: Any, at: At) -> Any:
    """Return the call of ``torch.zeros(1, requires_grad=True)``, all that a name is given.

    It may be moved to a device, and something else may say that it wants a gradient; None where
    it is no such call.
    """
    call = unmoved(node) or node
    if not isinstance(call, cst.Call) or _DTYPE.search(code_of(node)[len(code_of(call)) :]):
        return None
    name = at.names.called(call) or ""
    if name not in {f"torch.{factory}" for factory in _FACTORIES}:
        return None
    parent = at.names.parents.get(node)
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1:
        return None
    target = dotted(parent.targets[0].target)
    wants = rf"(?<![\w.]){re.escape(target)}\.requires_grad(_\((True)?\)|\s*=\s*True)"
    chained = re.search(r"\.requires_grad_\((True)?\)", code_of(node))
    asked = bool(target) and re.search(wants, at.source.text)
    return call if wants_gradient(call) or chained or asked else None


def wants_gradient(call: cst.Call) -> bool:
    """Return whether ``requires_grad=True`` is among the arguments."""
    given = [one for one in call.args if one.keyword and one.keyword.value == "requires_grad"]
    return any(code_of(one.value) == "True" for one in given)


def is_next(node: cst.CSTNode, at: At) -> bool:
    """Return whether ``node`` is what ``next`` is called on."""
    arg = at.names.parents.get(node)
    call = at.names.parents.get(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and code_of(call.func) == "next"


def is_whole_network(at: At, node: Any) -> bool:
    """Return whether ``node`` surely is a network itself, or is called one and no state of it."""
    node = unmoved(node) or node
    if not isinstance(node, (cst.Name, cst.Attribute)):
        return False
    if any(
        name.startswith("torch.nn.") and "Parameter" in name for name in at.names.call_names(node)
    ):
        return False  # one weight: ``net.weight = nn.Parameter(x)``
    if at.names.class_named(node) is not None or any(
        name.startswith("torch.nn.") for name in at.names.call_names(node)
    ):
        return is_module(at, node)
    held = [b.value for b in at.names.held(node) if b.value is not None]
    states = [re.search(r"state_dict|torch\.load", code_of(value)) for value in held]
    if states and all(states):
        return False
    return code_of(node).rpartition(".")[2] in _CALLED or code_of(node) in at.once(_with_parameters)


_CALLED = ("model", "net", "network", "netG", "netD", "generator", "discriminator")


def may_be_network(at: At, node: cst.BaseExpression) -> bool:
    """Return whether ``node`` is made by a class or function of a package that nobody checked."""
    inner = copied(at, node)
    if inner is not None:
        return is_module(at, inner) or may_be_network(at, inner)
    if at.names.imported(node) is not None or at.names.class_named(node) is not None:
        return False
    made = _makers(at, node)
    worlds = {package.world for name in made if (package := package_of(name)) is not None}
    return bool(made) and "neutral" not in worlds


_SELVES = ("cpu", "cuda", "eval", "npu", "requires_grad_", "to", "train")
_COPIES = ("copy.deepcopy", "copy.copy")


def _makers(at: At, node: Any) -> set[str]:
    """Return the full names of what makes ``node``; a copy of something is made as that is."""
    return at.names.call_names(node) - set(_COPIES)


def copied(at: At, node: Any) -> Any:
    """Return what ``copy.deepcopy(x)``, and methods that return their network, are of: ``x``.

    A name stands for what it was given; of a chain of copies what the first of them is of.
    """
    inner = _copied(at, node)
    if inner is not None or not isinstance(node, (cst.Name, cst.Attribute)):
        return inner
    seen = {code_of(node)}
    found = None
    while isinstance(node, (cst.Name, cst.Attribute)):
        copies = [_copied(at, origin) for origin in at.names.origins(node)]
        node = next((one for one in copies if one is not None), None)
        if node is None or code_of(node) in seen:
            break
        seen.add(code_of(node))
        found = node
    return found


def _copied(at: At, node: Any) -> Any:
    while isinstance(node, cst.Call):
        if at.names.called(node) in _COPIES and node.args:
            return node.args[0].value
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value not in _SELVES:
            return None
        node = node.func.value
    return None


def unmoved(node: Any) -> Any:
    """Return what ``x.to(...).eval()`` is called on: ``x``; None where nothing is called so."""
    inner = None
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value not in _SELVES:
            break
        node = inner = node.func.value
    return inner


def is_plain_object(at: At, node: cst.BaseExpression) -> bool:
    """Return whether ``node`` is surely no tensor and no network: a module, or a class of ours."""
    inner = copied(at, node)
    if inner is not None:
        return is_plain_object(at, inner)
    if at.names.imported(node) is not None:
        return True
    if isinstance(node, cst.Attribute) and node.attr.value == "parameters":
        return True  # of an optimizer: a tuple
    own = at.names.class_named(node)
    if own is not None:
        return not is_network_class(own, at)
    if isinstance(node, cst.Name) and node.value == "self":
        holder = at.names.enclosing(node, cst.ClassDef)
        return holder is not None and not is_network_class(holder, at)
    if _is_unknown_here(node, at):
        return False
    made = _makers(at, node)
    ours = ("torch", "apex", "mpcore_port_runtime", "mindspore")
    if not made or any(name.startswith(ours) for name in made):
        return False
    if at.values.kind(node) in ("tensor", "module"):
        return False  # of a package whose networks and functions are known
    if any(_may_give_tensors(name) for name in made):
        # of what else a name holds nothing may be known: x = rearrange(x, "a b -> b a")
        return False
    # What a network of the file gives, one branch of two, is a tensor; so is x in torch.f(y).x().
    calls = [one for one in at.names.origins(node) if isinstance(one, cst.Call)]
    methods = [one for one in calls if at.names.called(one) is None]
    return not any(is_module(at, one.func) or _begins_with(one, ours, at) for one in methods)


def _is_unknown_here(node: Any, at: At) -> bool:
    """Return whether a name is given anew in front of this place by what nobody knows.

    ``for x, labels in loader`` and, in another loop, ``labels = np.array(...)``.
    """
    if not isinstance(node, cst.Name):
        return False
    meant = at.names.meant(node)
    if len(meant) == len(at.names.scope(node).find(node.value)):
        return False
    return not any(
        one.kind in ("value", "with") or isinstance(one.value, cst.Call) for one in meant
    )


def _may_give_tensors(name: str) -> bool:
    """Return whether this is a function that gives some, or one of a package that nobody knows."""
    if made_by_others(name) == "tensor":
        return True
    package = package_of(name)
    last = name.rpartition(".")[2].lstrip("_")
    made = not last[:1].isupper() or last.endswith("Tensor")
    return package is not None and package.world == "unknown" and made


def _begins_with(node: Any, roots: tuple[str, ...], at: At) -> bool:
    """Return whether a chain of methods begins with a call of one of these packages."""
    while isinstance(node, (cst.Call, cst.Attribute, cst.Subscript)):
        if isinstance(node, cst.Call):
            if (at.names.called(node) or "").startswith(roots):
                return True
            node = node.func
        else:
            node = node.value
    return False
