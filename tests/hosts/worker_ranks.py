"""One of two ranks: a host's run beside amp.step's under the same wrapper; prints what it saw.

python worker_ranks.py HOST RANK FOLDER    (MASTER_ADDR and MASTER_PORT are set)
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import host_run as run
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mpcore as mp

HOST, RANK, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
os.environ.update(RANK=str(RANK), LOCAL_RANK=str(RANK), WORLD_SIZE="2", NODE_RANK="0")
os.environ.update(GLOO_SOCKET_IFNAME="lo", ACCELERATE_USE_CPU="1", HF_HUB_OFFLINE="1")
POLICIES = ("mixed_float16", "autocast_bfloat16")
PARTS, CUT = 2, 5  # micro-batches a step; the step after which is saved


def data() -> list[Any]:
    """Each rank its own; rank 1 overflows in one step, rank 0 in another."""
    made = run.batches(2 * run.STEPS, bad=())[RANK::2]
    made[7 if RANK else 12][0][0, 0] = torch.inf
    return made


def digest(weights: dict[str, Any], slots: list[Any]) -> str:
    whole = hashlib.sha256()
    for name in sorted(weights):
        whole.update(weights[name].tobytes())
    for slot in slots:
        full = slot.full_tensor() if hasattr(slot, "full_tensor") else slot
        whole.update(full.numpy().tobytes())
    return whole.hexdigest()


def whole(model: Any) -> dict[str, Any]:
    """The weights by name, of all ranks; buffers are each rank's own."""
    return {
        name.removeprefix("net."): (param.full_tensor() if hasattr(param, "full_tensor") else param)
        .detach()
        .numpy()
        for name, param in model.named_parameters()
    }


def said(model: Any, amp: Any, rate: float) -> dict[str, Any]:
    slots = run.slots_of(amp.optimizer)
    return {
        "end": digest(whole(model), slots),
        "rate": rate,
        "scale": amp.scale,
        "skipped": amp.state.skipped_steps,
    }


def shard(net: Any, mesh: Any) -> Any:
    fully_shard(net.fc1, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def own(policy: str, kind: str) -> dict[str, Any]:
    """amp.backward and amp.apply in a loop of one's own, in the same process group."""
    net = run.network()
    if kind == "fsdp":
        shard(net, init_device_mesh("cpu", (2,)))
    optimizer = run.optimizer_of(net)
    amp = mp.prepare(net, optimizer, run.policy_of(policy))
    model = DistributedDataParallel(net) if kind == "ddp" else net
    schedule = amp.scheduler(run.schedule_of(optimizer))
    for index, (x, y) in enumerate(data()):
        last = index % PARTS == PARTS - 1
        if kind == "ddp":
            model.require_backward_grad_sync = last
        elif HOST == "accelerate":  # Lightning lets FSDP2 synchronise each micro-batch
            net.set_requires_gradient_sync(last)
        with amp.autocast():
            loss = run.loss_of(model, x, y)
        amp.backward(loss / PARTS)
        if last:
            amp.apply(clip_norm=0.5)
            schedule.step()
    return said(net, amp, schedule.get_last_lr()[0])


def lightning(policy: str, kind: str, cut: Path, *, resume: bool = False) -> dict[str, Any]:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
    from torch.utils.data import DataLoader

    from mpcore_compat.lightning import PolicyPrecision

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = run.network()

        def configure_model(self) -> None:
            if kind == "fsdp" and not hasattr(self.net.fc1.weight, "placements"):
                shard(self.net, self.device_mesh["data_parallel"])

        def training_step(self, batch: Any, index: int) -> Any:
            return run.loss_of(self.net, *batch)

        def configure_optimizers(self) -> Any:
            optimizer = run.optimizer_of(self.net)
            return [optimizer], [{"scheduler": run.schedule_of(optimizer), "interval": "step"}]

    found: dict[str, Any] = {}

    class Look(pl.Callback):
        saved = False

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if not resume and trainer.global_step == CUT and not self.saved:
                self.saved = True
                trainer.save_checkpoint(cut)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            rate = trainer.lr_scheduler_configs[0].scheduler.get_last_lr()[0]
            found.update(said(module, trainer.precision_plugin.amp, rate))

    strategy = DDPStrategy(process_group_backend="gloo")
    if kind == "fsdp":
        strategy = ModelParallelStrategy(2, 1, process_group_backend="gloo")
    trainer = pl.Trainer(
        plugins=PolicyPrecision(run.policy_of(policy)),
        strategy=strategy,
        callbacks=[Look()],
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        accumulate_grad_batches=PARTS,
        gradient_clip_val=0.5,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )
    batches = data()
    if resume:  # the loader begins anew, in the middle of the epoch
        batches = batches[CUT * PARTS :] * 2
    trainer.fit(Module(), DataLoader(batches, batch_size=None), ckpt_path=cut if resume else None)
    return found


def accelerate(policy: str, kind: str, cut: Path, *, resume: bool = False) -> dict[str, Any]:
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    from mpcore_compat.accelerate import Accelerator

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(
        policy=run.policy_of(policy), cpu=True, gradient_accumulation_steps=PARTS
    )
    assert accelerator.distributed_type == DistributedType.MULTI_CPU
    net = run.network()
    if kind == "fsdp":
        # Accelerate takes FSDP2 for accelerators only; its own code then runs on a CPU as well.
        for state in (AcceleratorState, PartialState):
            state._shared_state["distributed_type"] = DistributedType.FSDP
        accelerator.state._shared_state["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False
        )
    optimizer = run.optimizer_of(net)
    schedule = run.schedule_of(optimizer)
    model, optimizer, schedule = accelerator.prepare(net, optimizer, schedule)
    schedule.split_batches = True  # else it moves once for each process
    if resume:
        accelerator.load_state(cut)
    batches = data()
    for index, (x, y) in enumerate(batches):
        if resume and index < CUT * PARTS:
            continue
        with accelerator.accumulate(model):
            accelerator.backward(run.loss_of(model, x, y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if index + 1 == CUT * PARTS and not resume:
            accelerator.save_state(cut)
    bare = accelerator.unwrap_model(model)
    return said(bare, accelerator.amp, schedule.get_last_lr()[0])


def refused(host: Any) -> str:
    """What is said where a wrapper and a policy do not go together."""
    try:
        host("model_bfloat16", "ddp", FOLDER / "never")
    except mp.BackendError as error:
        return str(error)
    return ""


def main() -> None:
    warnings.simplefilter("ignore")  # of the libraries; the tests of one process look at them
    host = {"lightning": lightning, "accelerate": accelerate}[HOST]
    for kind in ("ddp", "fsdp"):
        for policy in POLICIES:
            cut = FOLDER / f"{HOST}-{kind}-{policy}"
            told = {"host": host(policy, kind, cut)}
            told["resumed"] = host(policy, kind, cut, resume=True)
            told["own"] = own(policy, kind)
            if kind == "ddp":
                told["refused"] = refused(host)
            print("SAID", json.dumps({"kind": kind, "policy": policy, **told}), flush=True)
    if distributed.is_initialized():
        distributed.barrier()  # no rank closes its sockets while the other one still talks
        distributed.destroy_process_group()
    # Accelerate's groups end with the interpreter: gloo then aborts now and then, with a thread of
    # its own not joined ("terminate called without an active exception"), after all was said.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
