"""Train the image CNN on several ranks in torch: DDP or FSDP2, the same file on CPU, CUDA and NPU.

    torchrun --standalone --nproc-per-node 2 examples/distributed/train_torch.py --wrap ddp

Every rank takes its share of one global batch, so that a run saved by two ranks goes on with
another number of them: `--folder run --save-every 20`, and start it again. A rank that dies takes
the others with it (`--max-restarts 1` of torchrun starts all of them anew, from the last save).
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import mpcore as mp

sys.path.insert(0, str(Path(__file__).parents[1] / "image_cnn"))
import experiment

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def device_of(rank):
    """Return this rank's device: an accelerator where there is one; torch_npu is found as npu."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return torch.device("cpu")
    torch.accelerator.set_device_index(rank)
    return torch.device(found.type, rank)


def save(path, model, optimizer, amp, step):
    """Write weights, slots and the loss scale as whole tensors: nothing in it knows the ranks."""
    weights, slots = get_state_dict(model, optimizer, options=WHOLE)
    if distributed.get_rank() == 0:
        new = path.with_suffix(".new")
        whole = {"model": weights, "optimizer": slots, "amp": amp.state_dict(), "step": step}
        torch.save(whole, new)
        new.replace(path)
    distributed.barrier()


def load(path, model, optimizer, amp):
    """Put a file of `save` back, whatever the number of ranks that wrote it."""
    saved = torch.load(path, weights_only=True)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=saved["model"],
        optim_state_dict=saved["optimizer"],
        options=FROM_RANK_0,
    )
    amp.load_state_dict(saved["amp"])
    return saved["step"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--wrap", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together")
    parser.add_argument("--folder", type=Path, help="where the run is saved, and taken up again")
    parser.add_argument("--save-every", type=int, default=50)
    given = parser.parse_args()

    device = device_of(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(distributed.get_default_backend_for_device(device))
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    if given.batch % ranks:
        parser.error(f"--batch must divide evenly into {ranks} ranks, got {given.batch}")

    data = experiment.data()
    torch.manual_seed(0)
    model = experiment.build_torch().to(device)
    if given.wrap == "fsdp2":  # FSDP2 shards float32 values: first it, then mpcore
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    amp = mp.prepare(model, optimizer, given.policy)
    wrapped = DistributedDataParallel(model) if given.wrap == "ddp" else model

    path, first = None, 0
    if given.folder:
        given.folder.mkdir(parents=True, exist_ok=True)
        path = given.folder / "last.pt"
        first = load(path, model, optimizer, amp) if path.exists() else 0
    if rank == 0:
        print(amp.plan)
        print(f"{ranks} ranks on {device.type}, {given.wrap}, from step {first}", flush=True)

    def loss_fn(x, y):
        return functional.cross_entropy(wrapped(x), y)

    for step, (x, y) in enumerate(data.batches(given.steps, given.batch, seed=0)):
        if step < first:
            continue
        mine = slice(rank, None, ranks)  # this rank's share of the global batch
        x, y = torch.from_numpy(x[mine]).to(device), torch.from_numpy(y[mine]).long().to(device)
        result = amp.step(loss_fn, x, y, clip_norm=1.0)
        loss = torch.as_tensor(result.loss, device=device)
        distributed.all_reduce(loss, distributed.ReduceOp.SUM)
        if rank == 0 and (step % 20 == 0 or step == given.steps - 1):
            norm = f"grad norm {result.grad_norm:.3f}  scale {result.next_scale:g}"
            print(f"step {step:4}  loss {loss.item() / ranks:.4f}  {norm}", flush=True)
        if rank == 0 and not result.stepped:  # all ranks agree, whichever saw the overflow
            print(f"step {step} skipped: {result.reason}", flush=True)
        if path and (step + 1) % given.save_every == 0:
            save(path, model, optimizer, amp, step + 1)

    if path:
        save(path, model, optimizer, amp, given.steps)
    model.eval()
    with torch.no_grad(), amp.autocast():
        guess = wrapped(torch.from_numpy(data.x_test).to(device)).argmax(1).cpu().numpy()
    if rank == 0:
        accuracy = (guess == data.y_test).mean()
        print(f"test accuracy {accuracy:.3f}, {amp.state.skipped_steps} steps skipped")
    distributed.barrier()
    distributed.destroy_process_group()
    if device.type == "cpu":
        # Once in twenty runs gloo aborts while Python ends, in plain FSDP2 too (torch 2.13).
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
