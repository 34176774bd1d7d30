"""The idioms and names of 166 public mixed-precision scripts, with the number of files of each.

Counted by a survey of 95 public repositories; what three files or more have is here. The code is
our own, in the shortest form that has the idiom.
"""

from __future__ import annotations

__all__ = ["IDIOMS", "NAMES"]

_TOP = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast

model = nn.Linear(4, 2).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
"""
_MADE = _TOP + "scaler = GradScaler()\n"
_LOOP = "for x, y in data:\n"
_REGION = "    with autocast():\n        loss = criterion(model(x), y)\n"
_STEP = "    scaler.step(optimizer)\n    scaler.update()\n"
_SCALED = _MADE + _LOOP + _REGION + "    scaler.scale(loss).backward()\n"
_PLAIN = _TOP + _LOOP + "    loss = criterion(model(x), y)\n    loss.backward()\n"
_DDP = (
    "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    "import torch.distributed as dist\n"
)

# idiom: files that have it, code, the word that is refused on torch_npu and on MindSpore; "": none
IDIOMS: dict[str, tuple[int, str, str, str]] = {
    "autocast with": (121, _SCALED + _STEP, "", ""),
    "scaler.scale step update": (97, _SCALED + _STEP, "", ""),
    "torch.amp.GradScaler": (11, _TOP + 'scaler = torch.amp.GradScaler("cuda")\n', "", ""),
    "plain backward": (87, _PLAIN + "    optimizer.step()\n", "", ""),
    "scaled and plain": (
        32,
        _MADE
        + "use_amp = True\n"
        + _LOOP
        + "    with autocast(enabled=use_amp):\n        loss = criterion(model(x), y)\n"
        + "    if use_amp:\n        scaler.scale(loss).backward()\n        scaler.step(optimizer)\n"
        + "        scaler.update()\n    else:\n        loss.backward()\n        optimizer.step()\n",
        "",
        "",
    ),
    "unscale_ and clip_grad_norm_": (
        31,
        _SCALED
        + "    scaler.unscale_(optimizer)\n"
        + "    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        + _STEP,
        "",
        "",
    ),
    "clip without unscale_": (
        4,
        _SCALED + "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n" + _STEP,
        "",
        "",
    ),
    "accumulation": (
        49,
        _MADE
        + "for i, (x, y) in enumerate(data):\n"
        + _REGION
        + "        loss = loss / 4\n    scaler.scale(loss).backward()\n"
        + "    if (i + 1) % 4 == 0:\n"
        + "        scaler.step(optimizer)\n        scaler.update()\n"
        + "        optimizer.zero_grad()\n",
        "",
        "",
    ),
    "enabled=": (
        38,
        _TOP + "scaler = GradScaler(enabled=amp)\nwith autocast(enabled=amp):\n    y = model(x)\n",
        "",
        "",
    ),
    "dtype=": (35, _TOP + "with autocast(dtype=torch.float16):\n    y = model(x)\n", "", ""),
    "bfloat16 alone": (
        25,
        _TOP
        + _LOOP
        + '    with torch.autocast("cuda", dtype=torch.bfloat16):\n'
        + "        loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()\n",
        "",
        "",
    ),
    "nullcontext": (
        22,
        _TOP
        + "from contextlib import nullcontext\n"
        + "ctx = autocast() if amp else nullcontext()\nwith ctx:\n    y = model(x)\n",
        "",
        "",
    ),
    "two optimizers, one scaler": (
        7,
        _MADE
        + "other = nn.Linear(4, 2).cuda()\nsecond = torch.optim.SGD(other.parameters(), 0.1)\n"
        + _LOOP
        + _REGION
        + "    optimizer.zero_grad()\n    scaler.scale(loss).backward()\n"
        + "    scaler.step(optimizer)\n"
        + "    with autocast():\n        more = criterion(other(x), y)\n    second.zero_grad()\n"
        + "    scaler.scale(more).backward()\n    scaler.step(second)\n    scaler.update()\n",
        "",
        "",
    ),
    "scaler state": (
        18,
        _MADE
        + 'torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, "a.pt")\n'
        + 'state = torch.load("a.pt", map_location="cuda")\n'
        + 'scaler.load_state_dict(state["scaler"])\nmodel.load_state_dict(state["model"])\n',
        "",
        "",
    ),
    "apex": (
        24,
        "import torch\nfrom apex import amp\n"
        'model, optimizer = amp.initialize(model, optimizer, opt_level="O2")\n'
        "for x, y in data:\n    loss = model(x).mean()\n"
        "    with amp.scale_loss(loss, optimizer) as scaled:\n        scaled.backward()\n"
        "    optimizer.step()\n",
        "",
        "",
    ),
    "wrapper of a scaler": (
        7,
        _TOP
        + "class NativeScaler:\n    def __init__(self):\n        self._scaler = GradScaler()\n\n"
        + "    def __call__(self, loss, optimizer):\n        self._scaler.scale(loss).backward()\n"
        + "        self._scaler.step(optimizer)\n        self._scaler.update()\n\n\n"
        + "loss_scaler = NativeScaler()\n"
        + _LOOP
        + _REGION
        + "    loss_scaler(loss, optimizer)\n",
        "",
        "",
    ),
    "half": (12, _TOP + "model.half()\nx = x.half()\n", "", ""),
    "bfloat16": (4, _TOP + "model.bfloat16()\nx = x.bfloat16()\n", "", ""),
    "DDP": (
        63,
        _TOP
        + _DDP
        + 'dist.init_process_group("nccl")\nmodel = DDP(model, device_ids=[dist.get_rank()])\n'
        + "dist.barrier()\ndist.all_reduce(x)\ndist.destroy_process_group()\n",
        "",
        "",
    ),
    "DataParallel": (15, _TOP + "model = nn.DataParallel(model)\n", "", "DataParallel"),
    "no_sync": (
        6,
        _TOP + _DDP + "model = DDP(model)\nwith model.no_sync():\n    y = model(x)\n",
        "",
        "",
    ),
    "custom_fwd": (
        3,
        "import torch\nfrom torch.cuda.amp import custom_bwd, custom_fwd\n\n\n"
        "class Double(torch.autograd.Function):\n    @staticmethod\n    @custom_fwd\n"
        "    def forward(ctx, x):\n        return x * 2\n\n    @staticmethod\n    @custom_bwd\n"
        "    def backward(ctx, grad):\n        return grad * 2\n\n\ny = Double.apply(x)\n",
        "",
        "",
    ),
    "get_scale": (
        5,
        _MADE + "before = scaler.get_scale()\nprint(scaler.get_scale() < before)\n",
        "",
        "",
    ),
    "torch.cuda": (
        120,
        "import torch\ntorch.cuda.set_device(0)\ntorch.cuda.synchronize()\n"
        "print(torch.cuda.is_available(), torch.cuda.device_count())\ntorch.cuda.empty_cache()\n",
        "",
        "",
    ),
    "memory": (13, "import torch\nprint(torch.cuda.max_memory_allocated())\n", "", ""),
    "device strings": (
        85,
        "import torch\ndevice = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n"
        "x = torch.zeros(2, device=device)\nx = x.to('cuda:0')\n",
        "",
        "",
    ),
    "device type": (
        36,
        _TOP + "if device.type == 'cuda':\n    x = x.cuda(non_blocking=True)\n",
        "",
        "",
    ),
    "cudnn": (
        55,
        "import torch\nimport torch.backends.cudnn as cudnn\ncudnn.benchmark = True\n"
        "torch.backends.cudnn.deterministic = True\n",
        "",
        "",
    ),
    "tf32": (
        18,
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\n"
        "torch.backends.cudnn.allow_tf32 = True\ntorch.set_float32_matmul_precision('high')\n",
        "",
        "",
    ),
    "channels_last": (11, _TOP + "x = x.to(memory_format=torch.channels_last)\n", "", ""),
    "compile": (20, _TOP + "model = torch.compile(model)\n", "", ""),
    "fused": (25, _TOP + "optimizer = torch.optim.AdamW(model.parameters(), fused=True)\n", "", ""),
    "fused with a scaler": (
        11,
        _MADE
        + "optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)\n"
        + _LOOP
        + _REGION
        + "    scaler.scale(loss).backward()\n"
        + _STEP,
        "",
        "",
    ),
    "item": (121, _PLAIN + "    print(loss.item())\n", "", ""),
    "DataLoader": (
        60,
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "data = DataLoader(items, batch_size=8, shuffle=True, num_workers=2, pin_memory=True)\n"
        "for batch in data:\n    print(batch)\n",
        "",
        "",
    ),
    "transforms": (
        28,
        "import torch\nfrom torchvision import transforms\ntransform = transforms.ToTensor()\n",
        "",
        "",
    ),
    "set_to_none": (41, _TOP + "optimizer.zero_grad(set_to_none=True)\n", "", ""),
    "own Optimizer": (
        8,
        "import torch\n\n\nclass Mine(torch.optim.Optimizer):\n"
        "    def step(self, closure=None):\n        pass\n",
        "",
        "",
    ),
    "autograd.Function": (
        5,
        "import torch\n\n\nclass Double(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x):\n        ctx.save_for_backward(x)\n        return x * 2\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        return grad * 2\n\n\n"
        "y = Double.apply(x)\n",
        "",
        "",
    ),
    "SDPA": (7, _TOP + "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n", "", ""),
    "jit.script": (6, "import torch\nf = torch.jit.script(g)\n", "", "jit.script"),
    "nvtx": (
        8,
        "import torch\ntorch.cuda.nvtx.range_push('a')\ntorch.cuda.nvtx.range_pop()\n",
        "",
        "",
    ),
    "SyncBatchNorm": (
        11,
        _TOP + "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)\n",
        "",
        "",
    ),
    "DistributedSampler": (
        34,
        "import torch\nfrom torch.utils.data import DistributedSampler\n"
        "sampler = DistributedSampler(items)\nsampler.set_epoch(1)\n",
        "",
        "",
    ),
    "FSDP": (
        3,
        _TOP
        + "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        + "model = FSDP(model)\n",
        "",
        "FSDP",
    ),
    "Event": (6, "import torch\nstart = torch.cuda.Event(enable_timing=True)\n", "", "Event"),
    "Stream": (4, "import torch\nstream = torch.cuda.Stream()\n", "", ""),
}

_LISTS = {
    "torch": "no_grad save device load manual_seed bfloat16 tensor float32 zeros cat float16 randn "
    "stack compile long arange zeros_like ones randint mean max from_numpy sum channels_last full "
    "where set_float32_matmul_precision norm softmax multinomial inference_mode exp jit.script",
    "torch.nn": "Module utils.clip_grad_norm_ Linear CrossEntropyLoss DataParallel ModuleList "
    "Sequential Embedding Parameter GELU ReLU MSELoss BCEWithLogitsLoss init.zeros_ init.normal_ "
    "Conv2d LayerNorm ModuleDict BatchNorm2d L1Loss Identity LeakyReLU ConvTranspose2d Dropout "
    "BatchNorm1d",
    "torch.nn.functional": "cross_entropy softmax relu mse_loss interpolate log_softmax normalize "
    "scaled_dot_product_attention rms_norm linear nll_loss pad one_hot sigmoid",
    "torch.optim": "AdamW Adam SGD RMSprop",
    "torch.optim.lr_scheduler": "CosineAnnealingLR LambdaLR OneCycleLR ReduceLROnPlateau "
    "MultiStepLR StepLR LinearLR",
    "torch.distributed": "init_process_group all_reduce barrier destroy_process_group get_rank "
    "get_world_size is_initialized all_gather ReduceOp.SUM ReduceOp.AVG",
    "torch.cuda": "is_available set_device synchronize device_count empty_cache manual_seed "
    "manual_seed_all max_memory_allocated Event current_device Stream",
}
NAMES = [f"{module}.{name}" for module, names in _LISTS.items() for name in names.split()]
"""Names of torch that three of the files or more use."""
