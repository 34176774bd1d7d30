"""Calls of the ports' runtime that MindSpore answers itself, with the arguments they have.

The tables map names; whether MindSpore's own function does the same often hangs on the arguments:
random numbers without a generator, Adam without a decay, a schedule that is only stepped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below
from mpcore_port.mindspore.rules.losses.names_in import assigned
from mpcore_port.mindspore.rules.names.floats import with_floats
from mpcore_port.mindspore.rules.names.native_convolutions import (
    AXES,
    UNSEEN_PADDING,
    is_convolution,
    native_convolution,
)
from mpcore_port.mindspore.rules.names.native_padding import UNSEEN, is_padding, native_padding
from mpcore_port.mindspore.rules.optimizers.leaving import leaves
from mpcore_port.mindspore.rules.place import FULL_GRAPH, PortRule, by_name, is_next, need
from mpcore_port.names import code_of, dotted
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["NativeRule", "becomes_partial", "runtime_name"]

_SAME_RATES = {"StepLR", "MultiStepLR", "LambdaLR", "LinearLR", "ConstantLR"}
_NEAR_RATES = {"ExponentialLR", "CosineAnnealingLR", "PolynomialLR", "CosineAnnealingWarmRestarts"}
_LOSSES = {"CrossEntropyLoss": "cross_entropy", "NLLLoss": "nll_loss"}
_RECURRENT = {"LSTM", "GRU", "RNN"}
_PACKED = re.compile(
    r"\b(pack_padded_sequence|pack_sequence|PackedSequence)\b|\b(weight|bias)_[ih]h_l|all_weights\b"
)
"""What MindSpore's recurrent layers do not take, and names that their Parameters have not."""
_WIDE = re.compile(r"\*\*|<<|\d{10}|\b(iinfo|maxsize|pow)\b")
"""Bounds that may be wider than int32, which MindSpore's draws are on a CPU."""
_RANDOM = {"randn", "rand", "randperm", "randint"}
_FILLED = {"zeros", "ones"}
_ADAM = {"weight_decay", "amsgrad", "maximize"}
_MOVING = re.compile(r"\b(OneCycleLR|CyclicLR)\b")
_NATIVE = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad"}
_ABOVE_ZERO = {"RMSprop", "Adagrad"}
_ZERO = re.compile(r"^0(\.0*)?$")
_OTHERS = {"Adadelta", "Adamax", "NAdam", "RAdam", "Optimizer"}
_BY_HAND = re.compile(r"param_groups?\b|\.data\b|add_param_group|\.\w+[a-z]_\(|\bhorovod\b")
_ALLOWED = re.compile(
    r"\.(unscale|clip_grad_norm|clip_grad_value|kaiming_\w+|xavier_\w+|\w*normal|"
    r"\w*uniform|constant|zeros|ones|requires_grad|manual_seed)_\("
)
_NO_GRAD = "MindSpore records what value_and_grad runs, nothing else"
_DRIFT = "its rates are computed in float32: up to 5e-6 off after 100 steps"
_EFFECTS = dict.fromkeys(_NEAR_RATES, _DRIFT) | {
    "BCEWithLogitsLoss": "on CPU its gradient is wrong once the number of elements changes (2.10.0)"
}
_GROUPED = re.compile(r"""['"](betas|eps)['"]\s*:|\bdict\([^()]*\b(betas|eps)\s*=""")
_IMPORT = re.compile(r"^import mpcore_port_runtime as (\w+)\r?$", re.M)


def runtime_name(at: At) -> str:
    """Return what the module calls the runtime of ports; ``""`` if it does not import it."""
    found = _IMPORT.search(at.code)
    return found[1] if found else ""


def _asked_for(at: At) -> set[str]:
    """Return the classes of the runtime that are read without being made: of ``isinstance``, say.

    What is asked so has to be made as one.
    """
    port = at.once(runtime_name)
    made = {id(call.func) for call in at.names.calls}
    read = [node for node in at.names.by_type[cst.Attribute] if id(node) not in made]
    return {name for node in read if (name := dotted(node)) and name.startswith(f"{port}.")}


def _has_native_optimizers(at: At) -> bool:
    """Return whether MindSpore's optimizers do for the module what torch's did.

    Theirs do not see rates and values that are set by hand, in this file or by one that they are
    handed to, nor betas that change. Whole numbers in groups would stay such, and with these
    AdamW moves nothing.
    """
    text = at.source.around
    if _MOVING.search(text) or _BY_HAND.search(_ALLOWED.sub("(", text)) or _GROUPED.search(text):
        return False
    port = at.once(runtime_name)
    made = [call for call in at.names.calls if _makes_optimizer(call, port)]
    if any(dotted(call.func) in at.once(_asked_for) for call in made):
        return False
    for call in made:
        last = dotted(call.func).rpartition(".")[2]
        given = {arg.keyword.value for arg in call.args if arg.keyword}
        plain = sum(not arg.keyword for arg in call.args)
        if last in _OTHERS or any(arg.star for arg in call.args):
            return False
        if last == "Adam" and (given & _ADAM or plain > 4):
            return False
        if last == "SGD" and "lr" not in given and plain < 2:
            return False
        if not call.args or not _is_of_one(call.args[0].value, at):
            return False
        if last in _ABOVE_ZERO and any(_ZERO.match(code_of(arg.value)) for arg in call.args):
            return False
    return not leaves(made, port, at)


def _makes_optimizer(call: cst.Call, port: str) -> bool:
    name = dotted(call.func)
    last = name.rpartition(".")[2]
    return name == f"{port}.{last}" and last in _NATIVE | _OTHERS


def _is_of_one(value: cst.BaseExpression, at: At) -> bool:
    """Return whether parameters are of one network: two of one class have them by equal names."""
    made = [one for one in at.names.origins(value) if not isinstance(one, cst.Name)]
    texts = [code_of(one) for one in made] or [code_of(value)]
    name = code_of(value)
    added = name.isidentifier() and re.search(
        rf"(?<![\w.]){name}(\s*\+=|\.(append|extend|insert)\()", at.code
    )
    return not added and all(len(_PARAMETERS.findall(text)) < 2 for text in texts)


_PARAMETERS = re.compile(r"\b(parameters|trainable_params)\(|\+|\bchain\(")


_ASKED_FOR = re.compile(r"\b(isinstance|issubclass|type)\(.*\bConv1d\b")
"""What asks whether a layer is one, perhaps in another file: it is made as what is asked for."""


_BENT_LAYERS = {
    **{name: f"nn.{name}" for name in ("Hardtanh", "LeakyReLU", "LogSigmoid", "Mish", "ReLU6")},
    "Hardswish": "nn.HSwish",
    **{name: f"ops.{name}" for name in ("hardswish", "hardtanh", "leaky_relu", "logsigmoid")},
    **{name: f"ops.{name}" for name in ("mish", "relu6")},
}
_BENT = "MindSpore's own, which needs nothing else"
_SLOPES = (
    "other slopes than torch's at the points where they bend; mish above 88 and logsigmoid below "
    "-88 are no numbers"
)


def _bent(name: str, new: cst.Call, at: At) -> cst.Call | None:
    """Return an activation of MindSpore's, whose slopes at its bends are not torch's."""
    to = _BENT_LAYERS.get(name)
    if to is None or any(arg.star for arg in new.args):
        return None
    module, _, last = to.partition(".")
    args = list(new.args)
    if name in ("LeakyReLU", "leaky_relu"):
        place = int(name == "leaky_relu")
        known = arguments(new, ("input", "negative_slope")[1 - place :])
        slope = cst.Arg(known.get("negative_slope", cst.Float("0.01")))
        args = [*(one.with_changes(comma=cst.MaybeSentinel.DEFAULT) for one in args[:place]), slope]
    return new.with_changes(func=cst.parse_expression(f"{need(at, module)}.{last}"), args=args)


_STREAMS, _WORD = {"numpy", "random"}, 2**32
_DRAWN = (cst.Call, cst.Subscript, cst.UnaryOperation)
"""What a seed may be that is a tensor's entry, negative, or wider than 32 bits."""


class NativeRule(PortRule):
    """A call of the runtime of ports becomes MindSpore's own where that does the same."""

    name = "native"
    reason = "with these arguments MindSpore's own does the same"
    visits = (cst.Call, cst.With)

    def idle(self, at: At) -> bool:
        """Whether nothing is asked of the runtime, or the script is a port."""
        return super().idle(at) or not at.once(runtime_name)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Replace one call, or a region that says nothing in MindSpore."""
        port = at.once(runtime_name)
        if not port:
            return None
        if isinstance(old, cst.With):
            return self._region(old, new, port, at)
        name = dotted(old.func)
        if not name.startswith(f"{port}.") or name.count(".") != 1:
            return None
        if name in at.once(_asked_for):
            return None
        bent = at.options.plain and _bent(name.partition(".")[2], new, at)
        if bent:
            at.note(self, old, bent, "changed", _BENT, _SLOPES)
            return bent
        last = name.partition(".")[2]
        if is_padding(last):
            return self._padded(last, old, new, at)
        if at.options.plain and is_convolution(last):
            return self._convolved(last, old, new, at)
        made = self._made(last, old, new, at)
        if made is None:
            return None
        if isinstance(made, str):
            made = new.with_changes(func=cst.parse_expression(made))
        effect = _EFFECTS.get(last, "")
        at.note(self, old, made, "changed" if effect else "exact", "", effect)
        return made

    def _padded(self, name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Pad by MindSpore's own where no size is below zero, or where nothing else is wanted."""
        found = native_padding(name, new, at)
        if found is None or not (found[1] or at.options.plain):
            return None
        made, seen = found
        at.note(self, old, made, "exact" if seen else "unproven", "" if seen else UNSEEN)
        return made

    def _convolved(self, name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Convolve by MindSpore's own: a plain port needs nothing else."""
        found = native_convolution(name, new, at)
        if found is None or (name == "Conv1d" and _ASKED_FOR.search(at.source.around)):
            return None
        made, seen = found
        if not seen:
            at.note(self, old, made, "unproven", UNSEEN_PADDING)
        elif name == "Conv1d":
            at.note(self, old, made, "changed", "", AXES)
        else:
            at.note(self, old, made)
        return made

    def _filled(self, name: str, new: cst.Call, at: At) -> Any:
        """Return ``ops.zeros``; a Tensor of shape () is made of its number."""
        size, *more = new.args
        if not isinstance(size.value, cst.Tuple) or size.value.elements:
            return f"{need(at, 'ops')}.{name}"
        ms = need(at, "ms")
        dtype = code_of(more[0].value) if more else f"{ms}.float32"
        return cst.parse_expression(f"{ms}.Tensor({int(name == 'ones')}, {dtype})")

    def _seed(self, old: cst.Call, at: At) -> Any:
        """Return ``ms.set_seed``, which sets numpy's stream and Python's, too.

        Of ports that have the runtime only where nobody in sight draws from those.
        """
        value = old.args[0].value
        names = {name.partition(".")[0] for name, _ in at.names.imports}
        others = names & (_STREAMS | at.project.modules | at.project.beside)
        is_wide = isinstance(value, cst.Integer) and value.evaluated_value >= _WORD
        is_known = isinstance(value, cst.Integer) and not is_wide
        if not at.options.plain and (others or not is_known):
            return None
        set_seed = f"{need(at, 'ms')}.set_seed"
        if is_wide or isinstance(value, _DRAWN):
            return cst.parse_expression(f"{set_seed}(int({code_of(value)}) % 2**32)")
        return set_seed

    def _made(self, name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Return a new function as code, a whole expression, or None."""
        given = {arg.keyword.value for arg in old.args if arg.keyword}
        if any(arg.star for arg in old.args):
            return None
        if name == "compiled" and len(old.args) == 1:
            text = at.code
            whole = FULL_GRAPH in text or at.options.plain
            return new.args[0].value if whole and "port.loss(" not in text else None
        if name in _FILLED and old.args:
            return self._filled(name, new, at)
        if name == "manual_seed" and len(old.args) == 1:
            return self._seed(old, at)
        if name in _RANDOM and "generator" not in given:
            return self._random(name, old, at)
        if name == "randn_like":
            return self._like(new, given, at)
        if name in _RECURRENT:
            return None if _PACKED.search(at.source.around) else f"{need(at, 'nn')}.{name}"
        if name in _LOSSES:
            return self._loss(name, old, new, at)
        if name == "BCEWithLogitsLoss" and at.options.plain and not old.args:
            return f"{need(at, 'nn')}.BCEWithLogitsLoss"
        if name in _NATIVE:
            return self._optimizer(name, old, new, at)
        rates = _SAME_RATES | _NEAR_RATES if at.options.plain else _SAME_RATES
        if name in rates and at.once(_has_native_optimizers) and self._only_steps(old, at):
            func = cst.parse_expression(f"{need(at, 'optim')}.lr_scheduler.{name}")
            return _floats(f"torch.optim.lr_scheduler.{name}", old, new, at).with_changes(func=func)
        if name == "parameters" and "parameters" in at.names.functions:
            return None  # a class of the script says which they are
        if name == "parameters" and self._is_trained(old, at) and not is_next(old, at):
            return cst.parse_expression(f"{code_of(old.args[0].value)}.trainable_params()")
        if name == "parameters" and at.options.plain and self._is_looped(old, at):
            return cst.parse_expression(f"{code_of(old.args[0].value)}.trainable_params()")
        if name == "grad_of" and at.options.plain and len(old.args) == 1:
            return cst.parse_expression(f'getattr({code_of(new.args[0].value)}, "grad", None)')
        waits = name == "synchronize" and not old.args  # MindSpore's takes no device
        return f"{need(at, 'ms')}.runtime.synchronize" if waits else None

    def _random(self, name: str, old: cst.Call, at: At) -> Any:
        ops = need(at, "ops")
        plain = [arg for arg in old.args if not arg.keyword]
        if name == "randint" and any(_WIDE.search(code_of(arg.value)) for arg in plain):
            return None
        if name == "randint" and plain and not _is_tuple(plain[-1].value):
            return None
        if name == "randint" and len(plain) == 2 and len(old.args) == 2:
            high, size = (code_of(arg.value) for arg in plain)
            return cst.parse_expression(f"{ops}.randint(0, {high}, {size})")
        if name == "randint" and len(plain) != 3:
            return None
        return f"{ops}.{name}"

    def _like(self, new: cst.Call, given: set[str], at: At) -> Any:
        """Name the dtype, which MindSpore does not take from the tensor."""
        function = f"{need(at, 'ops')}.randn_like"
        if "dtype" in given:
            return function
        if len(new.args) != 1 or not dotted(new.args[0].value):
            return None
        tensor = code_of(new.args[0].value)
        return cst.parse_expression(f"{function}({tensor}, dtype={tensor}.dtype)")

    def _loss(self, name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
        parent = at.names.parents.get(old)
        holder = at.names.parents.get(parent) if isinstance(parent, cst.Arg) else None
        wrapped = isinstance(holder, cst.Call) and dotted(holder.func).endswith(".compiled")
        if not wrapped and not isinstance(parent, (cst.Assign, cst.Return)):
            return None
        if any(arg.star for arg in old.args):  # settings, known when it runs
            return None
        if isinstance(parent, cst.Assign) and any(_is_a_cell(t.target, at) for t in parent.targets):
            return None
        function = f"{need(at, 'ops')}.{_LOSSES[name]}"
        if not old.args:
            return cst.parse_expression(function)
        args = [
            code_of(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT))
            if arg.keyword
            else f"weight={code_of(arg.value)}"
            for arg in _floats(f"torch.nn.{name}", old, new, at).args
        ]
        given = ", ".join(args)
        if at.options.jit and _is_readable(old):  # in a graph, a partial has no gradient
            code = f"lambda *args, **kwargs: {function}(*args, {given}, **kwargs)"
            return cst.parse_expression(code)
        at.need("import functools", "mindspore")
        return cst.parse_expression(f"functools.partial({function}, {given})")

    def _optimizer(self, name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
        if not at.once(_has_native_optimizers):
            return None
        optim = need(at, "optim")
        new = _floats(f"torch.optim.{name}", old, new, at)
        if name != "Adam":
            return new.with_changes(func=cst.parse_expression(f"{optim}.{name}"))
        args = ", ".join(
            code_of(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in new.args
        )
        return cst.parse_expression(f"{optim}.AdamW({args}, weight_decay=0.0)")

    def _only_steps(self, old: cst.Call, at: At) -> bool:
        """Return whether nothing is asked of a schedule but a step."""
        parent = at.names.parents.get(old)
        if not isinstance(parent, cst.Assign) or len(parent.targets) != 1:
            return False
        name = code_of(parent.targets[0].target).rpartition(".")[2]
        text = at.code
        asked = re.findall(rf"\b{re.escape(name)}\.(\w+)\(([^)]*)\)", text)
        inside = re.search(r"SequentialLR|ChainedScheduler", text)
        handed = re.search(
            rf"\w*state_dict\({re.escape(name)}\b|[\[(]\s*{re.escape(name)}\s*,", text
        )
        return bool(asked) and all(a == ("step", "") for a in asked) and not inside and not handed

    def _is_looped(self, old: cst.Call, at: At) -> bool:
        """Return whether a loop goes through these parameters, and none is ever frozen."""
        looped = isinstance(at.names.parents.get(old), (cst.For, cst.CompFor))
        return looped and len(old.args) == 1 and "requires_grad" not in at.source.around

    def _is_trained(self, old: cst.Call, at: At) -> bool:
        """Return whether an optimizer takes these parameters, and none is ever frozen."""
        arg = at.names.parents.get(old)
        call = at.names.parents.get(arg) if isinstance(arg, cst.Arg) else None
        if not isinstance(call, cst.Call) or len(old.args) != 1:
            return False
        last = dotted(call.func).rpartition(".")[2]
        frozen = "requires_grad" in at.source.around or not dotted(old.args[0].value)
        return last[:1].isupper() and call.args[0] is arg and not frozen

    def _region(self, old: cst.With, new: Any, port: str, at: At) -> Any:
        """Take ``no_grad`` from around what only measures: nothing is recorded there anyway."""
        items = [code_of(item.item) for item in old.items]
        if items != [f"{port}.no_grad()"] or not isinstance(new.body, cst.IndentedBlock):
            return None
        home: Any = at.names.enclosing(old, cst.FunctionDef)
        text = code_of(home if home is not None else old)
        if not _MEASURES.search(text) or not _is_outside(old, home, text, port, at):
            return None
        if _says_no_grad(code_of(new.body), port, at):
            return None
        hands_on = _hands_on(old, home if home is not None else at.module)
        # another file of the process may record all that runs; a plain one would need the runtime
        if f"{port}.record()" in at.code or (hands_on and not at.options.plain):
            return None
        body: list[Any] = list(new.body.body)
        lead = [*new.leading_lines, *body[0].leading_lines]
        made = "\n".join(code_of(line) for line in body)
        if hands_on:
            reason = f"{_NO_GRAD}, if no other file of the process says {port}.record()"
            at.note(self, old, made, "unproven", reason)
        else:
            at.note(self, old, made, reason=_NO_GRAD)
        return cst.FlattenSentinel([body[0].with_changes(leading_lines=lead), *body[1:]])


_ASKED_OF_LOSSES = re.compile(
    r"\b\w*(crit|loss)\w*\.(__class__|cuda|eval|forward|ignore_index|label_smoothing|modules|"
    r"named_\w+|parameters|reduction|register_\w+|state_dict|to|train|weight)\b|"
    r"\bisinstance\(\s*[\w.]+\s*,[^:\n]*\b(CrossEntropyLoss|NLLLoss)\b|"
    r"\b(getattr|hasattr|setattr)\(\s*[\w.]*(crit|loss)\w*\s*,"
)
"""What a class of losses answers and a function does not, by whatever name it is held."""


def _is_a_cell(target: cst.BaseExpression, at: At) -> bool:
    """Return whether a loss is asked for what a function has not: an attribute, its parameters.

    Functions and files that it is handed to call it by names of their own.
    """
    name, port = re.escape(code_of(target)), at.once(runtime_name)
    asked = rf"(?<![\w.]){name}\.\w|\b{port}\.\w+\(\s*{name}\s*[,)]"
    if re.search(asked, at.code) or _ASKED_OF_LOSSES.search(at.source.around):
        return True
    return _is_handed_to_a_file(code_of(target), at)


def _is_handed_to_a_file(name: str, at: At) -> bool:
    """Return whether a function of another file of the script takes what a name holds."""
    files = {*at.project.modules, *at.project.beside}
    takers = (one for one in at.names.calls if any(code_of(a.value) == name for a in one.args))
    return any((at.names.called(one) or "").partition(".")[0] in files for one in takers)


def _floats(name: str, old: cst.Call, new: cst.Call, at: At) -> cst.Call:
    """Write as floats what MindSpore's own takes as nothing else, or takes otherwise."""
    row = by_name(name)
    made: cst.Call = with_floats(name, row.native_floats if row else (), new, old, at)
    return made


_MEASURES = re.compile(r"\.item\(\)|\.asnumpy\(\)|set_train\(False\)|print\(")
_LOOPS = (cst.For, cst.While)


def _is_outside(region: cst.With, home: Any, text: str, port: str, at: At) -> bool:
    """Return whether no loss is differentiated through a region: what it gives may be a target.

    A function that runs the gradients of a loss is none that is differentiated, and neither is one
    that goes through data in evaluation mode.
    """
    drives = rf"\bvalue_and_grad\(|\b{port}\.loss\(|\.train_cell\("
    if home is None or re.search(drives, text):
        return True
    around = at.names.enclosing(region, *_LOOPS, cst.FunctionDef)
    loops = isinstance(around, _LOOPS) or any(type(n) in _LOOPS for n in below(region.body))
    return loops and ("set_train(False)" in text or _gives_numbers(text))


_STEPS = re.compile(r"\b(\w*_?(?:step|train\w*|run\w*))\(")
_NO_STEPS = frozenset({"set_train", "step", "train"})


def _says_no_grad(body: str, port: str, at: At) -> bool:
    """Return whether what a region calls may be a step of training elsewhere, which it switches.

    ``if outputs.requires_grad`` asks for the region, and a loss has no gradients in it.
    """
    if f"{port}.wants_grad(" in at.source.around:
        return True
    called = {name for name in re.findall(r"\b(\w+)\(", body) if name in at.names.functions}
    own = (code_of(one) for name in called for one in at.names.functions[name])
    if any(f"{port}.loss(" in text for text in own):
        return True
    return any(name not in _NO_STEPS | called for name in _STEPS.findall(body))


def _hands_on(region: cst.With, home: Any) -> bool:
    """Return whether a function reads behind a region what that makes, other than numbers."""
    inside, whole = (re.sub(r"^ +", "", code_of(one), flags=re.M) for one in (region, home))
    head, _, rest = whole.partition(inside.strip())
    looped = head if re.search(r"^(for|while)\b", head, re.M) else ""
    for name in {made for line in region.body.body for made in assigned(line)}:
        values = re.findall(rf"^\s*{re.escape(name)} *\+?= *(.+)$", inside, re.M)
        numbers = bool(values) and all(_NUMBER.search(value.strip()) for value in values)
        uses = re.findall(rf"^.*(?<![\w.]){re.escape(name)}\b.*$", rest + looped, re.M)
        if not numbers and not all(_MEASURES.search(line) for line in uses):
            return True
    return False


_RETURNED = re.compile(r"^\s*return\b *(.*)$", re.M)
_NUMBER = re.compile(r"^-?[\d.]+$|\.(item|asnumpy)\(\)$")


def _gives_numbers(text: str) -> bool:
    """Return whether a function returns names of numbers alone, none of them a tensor."""
    names = [found.strip() for found in _RETURNED.findall(text)]
    if not names or not all(name.isidentifier() for name in names):
        return False
    values = [v for n in names for v in re.findall(rf"^\s*{n} *\+?= *(.+)$", text, re.M)]
    return bool(values) and all(_NUMBER.search(value.strip()) for value in values)


def becomes_partial(call: cst.Call, name: str | None) -> bool:
    """Return whether a call of torch makes what a port under ``--jit`` holds as a partial."""
    return (name or "").removeprefix("torch.nn.") in _LOSSES and not _is_readable(call)


def _is_readable(call: cst.Call) -> bool:
    """Return whether all arguments of a call are numbers, texts or names: the same at each time."""
    values = [arg.value for arg in call.args]
    plain = [v.expression if isinstance(v, cst.UnaryOperation) else v for v in values]
    return all(isinstance(v, (cst.BaseNumber, cst.SimpleString)) or bool(dotted(v)) for v in plain)


def _is_tuple(size: cst.BaseExpression) -> bool:
    """Return whether a size surely is a tuple: a list MindSpore's randint does not take."""
    return isinstance(size, cst.Tuple) or dotted(size).endswith(".shape")
