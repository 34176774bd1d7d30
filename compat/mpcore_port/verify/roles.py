"""What a name says of a value that a script does not give: a number, a flag, or nothing."""

from __future__ import annotations

import re

__all__ = [
    "AMP",
    "BATCH",
    "BATCH_SIZE",
    "LOADERS",
    "LOSS",
    "NETWORK",
    "OF_WEIGHTS",
    "SCALER",
    "SETTINGS",
    "flag_of",
    "is_called_loss",
    "number_of",
    "role_of",
    "says_number",
]

SETTINGS = re.compile(
    r"(\w+_)?(args|cfg|config|opts?|hparams|hps|params|conf|flags|options|settings)|h|hyp|hyper\w*|"
    r"(\w+_)?(args?|cfg|config|opts?|hparams|options|settings)_?dict",
    re.I,
)
"""Names of a script's settings."""


AMP = re.compile(
    r"(use_?|enable_?|with_?)?(torch_?|native_?|apex_?)?"
    r"(amp|fp16|bf16|half|mp|mixed_?precision|autocast)(_?(run|training|enabled|precision))?|"
    r"(use|enable|with)_?(grad_?|loss_?)?scal(er|ing)",
    re.I,
)
_CUDNN = re.compile(r"cudnn\w*", re.I)  # torch takes nothing but True and False
_TRAINS = re.compile(r"(is|do)_?train(ing)?", re.I)
NETWORK = re.compile(
    r"(\w+_)?(model|net|network|module|unet|backbone|generator|discriminator|net_?[gd]|encoder|"
    r"decoder|student|teacher)(_\w+)?",
    re.I,
)
BATCH = 8
"""How many samples the batches have that are made."""
BATCH_SIZE = re.compile(r"(train_?)?(mini_?|micro_?)?(batch_?size|bs)", re.I)
LOADERS = re.compile(r"(\w+_)?(data_?)?loaders?(_\w+)?", re.I)
"""Names of what gives batches, and of what holds several that do."""
OF_WEIGHTS = "loss of weights"
"""The name of what stands for a loss that nothing computed: it is made of weights."""
LOSS = re.compile(r"loss|criterion|crit$|objective|cross_?entropy|divergence", re.I)
_NUMBERS: tuple[tuple[str, float], ...] = (
    (r"\w*drop(out|path)?(_?(rate|p|prob|path))*", 0.0),
    (r"(\w+_)?(grad(ient)?_)?(accum\w*|accumulate)", 2),
    (r"(\w+_)?(freq(uency)?|interval|every|period)(_n)?(_(steps?|iters?|epochs?|batches))?", 10),
    (r"(\w+_)?(lr|learning_rate|alpha)", 0.01),
    (r"(\w+_)?(weight_decay|wd)", 0.0001),
    (r"(\w+_)?(momentum|beta_?1(_\w+)?|decay|ema_decay)", 0.9),
    (r"(\w+_)?beta_?2(_\w+)?", 0.999),
    (r"(\w+_)?(eps|epsilon)", 1e-8),
    (r"(label_?)?smoothing", 0.1),
    (r"(pct|percent|ratio|frac(tion)?|prob(ability)?)_\w+|\w+_(pct|ratio|frac(tion)?|prob)", 0.3),
    (r"(\w+_)?(clip\w*|max_norm)|clip_grad\w*", 1.0),
    # lr_schedule[it], cosine_scheduler(...)[it]; what steps, and what makes schedulers, is none
    (
        r"(?!(lr|warm_?up|plateau)_(\w+_)?scheduler|create|make|build|get)\w+_schedul(e|er|ing)s?",
        0.01,
    ),
    (r"(\w+_)?(local_rank|rank|gpu|(start|first|last)_?epoch|seed|start\w*|index|gpu_id)", 0),
    (r"(\w+_)?(max|num|total|n)_?(train_)?(steps|iters?|iterations|batches|updates)", 64),
    (r"(epochs?|steps?|iters?|iterations)_(full|max|total|end)", 64),
    (r"(get_)?cycle_len(gth)?", 6400),
    (r"epoch_(steps?|size|len(gth)?)|(steps?|iters?|batches)_per_epoch|\w+_per_epoch", 64),
    (r"(\w+_)?batch(_?size)?", 8),
    (r"(num_|n_)?(classes|outputs?)|out(put)?_(features|dim|size|channels)|nc", 10),
    (r"(in_|input_|num_|n_)?(channels?|ch|chans)", 3),
    (r"in(put)?_?(features|dim|size)", 16),
    (r"(state|obs(ervation)?)_?(dims?|size)", 16),
    (r"act(ion)?_?(dims?|size)|(n|num)_actions", 4),
    (r"\w*vocab(_size)?|num_embeddings|n_tokens", 64),
    (r"(n_|num_)?views", 2),
    (r"(n_|num_)?heads?", 4),
    (r"(n_|num_)?(layers?|blocks?)|depth", 2),
    (r"(stack|batch)_dim", 0),
    (r"block_size|seq_len\w*|max_len(gth)?|context(_length)?", 32),
    (r"(d_|n_)?(embd?|embed(ding)?_?(dim|size)?|hidden(_dim|_size)?|dim|width|hid)", 32),
    (r"(d_|n_)model", 32),
    (r"(image|img|input|crop)_?(size|res\w*)", 32),
)


_REACHED = re.compile(r"(^|_)(epochs?|it|iters?|iterations?|steps?|updates?)$", re.I)


def says_number(name: str) -> bool:
    """Return whether a name says a number, and no network."""
    return number_of(name, -1) >= 0 and NETWORK.fullmatch(name) is None


def number_of(name: str, unknown: float = 1) -> float:
    """Return the number that a name may stand for; ``unknown`` where it says nothing."""
    last = re.sub(r"\[.*", "", name).rpartition(".")[2].replace("-", "_")
    if name.startswith("torch.load") and _REACHED.search(last):
        return 0  # a checkpoint that is not there says that nothing was trained
    return next((n for pattern, n in _NUMBERS if re.fullmatch(pattern, last, re.I)), unknown)


def flag_of(name: str) -> bool:
    """Return whether a flag of that name is on: of mixed precision, of training, of cuDNN."""
    held, _, last = name.replace("-", "_").rpartition(".")
    if held and last.lower() in ("enable", "enabled", "use"):  # cfg.AMP.ENABLED
        return flag_of(held)
    return any(one.fullmatch(last) for one in (AMP, _TRAINS, _CUDNN))


SCALER = r"(\w+_)?(grad_?|loss_?|amp_?|g)?scaler"
"""Names of loss scalers."""
_OPTIMIZER = "torch.optim.SGD({model}.parameters(), lr=0.01, momentum=0.9)"
_ROLES = (  # what a parameter's name says, and what it is given
    (r"(train_?|data_?)*(loader|dl|batches|iter(ator)?|data_loader)", "_mpcore_loader()"),
    (r"(\w+_)?optim(izer)?|opt", _OPTIMIZER),
    (SCALER, "torch.cuda.amp.GradScaler()"),
    (r"loss(es)?", '_mpcore_missing("loss")(torch.ones(8, 16, device="cuda"))'),
    (r"parameters", '_mpcore_missing("model").parameters()'),
    (r"criterion|loss_f(n|unc|unction)|objective|crit", "torch.nn.CrossEntropyLoss()"),
    (r"device|dev", 'torch.device("cuda")'),
    (r"rank|local_rank|gpu|(start_)?epoch|seed", "0"),
    (r"(\w+_)?epochs|world_size", "1"),
    (r"(max_|num_|total_)?(steps|iters|iterations)", "64"),
    (r"(use_)?(amp|fp16|mixed_precision)", "True"),
    (r"(is_|do_)?(stepping|last_step|should_step)", "True"),
    (r"(grad(ient)?_)?accum\w*", "2"),
    (r"(\w+_)?(clip\w*|max_norm)|clip_grad\w*", "1.0"),
    (r"lr|learning_rate", "0.01"),
    (r"(print|log|save|eval)_?(freq|interval|every|steps)", "10"),
    (r"writer|logger|log|tb|progress|run", '_mpcore_missing("{name}")'),
    (r"dtype|amp_dtype", "torch.float16"),
    (r"(cls|class)_?weights?", 'torch.ones(10, device="cpu").numpy()'),
)


def is_called_loss(name: str, text: str, held: str = "") -> bool:
    """Return whether ``loss``, which may be a number, is what computes one: a script calls it.

    Args:
        name: of a parameter or an attribute.
        text: of the script.
        held: what stands in front of the name.
    """
    if not re.fullmatch(r"loss(es)?", name, re.I):
        return False
    return re.search(rf"(?<![\w.]){re.escape(held + name)}\(", text) is not None


def role_of(name: str, model: str) -> str:
    """Return code for what a name says it is, of ``model`` where it asks for one; "" if nothing."""
    code = next((code for pattern, code in _ROLES if re.fullmatch(pattern, name, re.I)), "")
    return code.format(model=model, name=name) if "{" in code else code
