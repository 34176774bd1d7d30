"""Train the image CNN on several ranks in MindSpore, data parallel, started by msrun.

    msrun --worker_num=2 --local_worker_num=2 --join=True --log_dir=logs \\
      examples/distributed/train_mindspore.py

Every rank takes its share of one global batch; gradients are averaged by mpcore's step, as
`nn.DistributedGradReducer` would, and an overflow on one rank skips the step on all of them.
On a CPU bfloat16 is simulated, and convolutions take about a second a step.
"""

import argparse
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import get_group_size, get_rank, init

import mpcore as mp

sys.path.insert(0, str(Path(__file__).parents[1] / "image_cnn"))
import experiment

cross_entropy = nn.CrossEntropyLoss()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_float16")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--folder", type=Path, help="where the run is saved, and taken up again")
    given = parser.parse_args()

    init()
    rank, ranks = get_rank(), get_group_size()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    if given.batch % ranks:
        parser.error(f"--batch must divide evenly into {ranks} ranks, got {given.batch}")

    data = experiment.data()
    ms.set_seed(0)  # the same weights on every rank
    net = experiment.build_mindspore().set_train()
    optimizer = nn.Adam(net.trainable_params(), 1e-3)
    first = 0
    amp = mp.prepare(net, optimizer, given.policy)
    state = given.folder and given.folder / "run.amp"
    if state and state.exists():
        saved = ms.load_checkpoint(str(given.folder / "optimizer.ckpt"))
        first = int(saved.pop("step").asnumpy())
        ms.load_param_into_net(optimizer, saved)
        amp.load(state)
    if rank == 0:
        print(amp.plan)
        print(f"{ranks} ranks, from step {first}", flush=True)

    def loss_fn(x, y):
        return cross_entropy(net(x), y)

    cell = amp.train_cell(loss_fn, clip_norm=1.0)

    @ms.jit
    def train_step(x, y):
        return cell(x, y)

    for step, (x, y) in enumerate(data.batches(given.steps, given.batch, seed=0)):
        if step < first:
            continue
        mine = slice(rank, None, ranks)  # this rank's share of the global batch
        result = amp.result(train_step(Tensor(x[mine]), Tensor(y[mine])))
        if rank == 0 and not result.stepped:  # all ranks agree, whichever saw the overflow
            print(f"step {step} skipped: {result.reason}", flush=True)
        if rank == 0 and (step % 10 == 0 or step == given.steps - 1):
            print(f"step {step:4}  loss {result.loss:.4f}  scale {amp.scale:g}", flush=True)

    if state and rank == 0:
        given.folder.mkdir(parents=True, exist_ok=True)
        step = {"name": "step", "data": Tensor(given.steps)}
        kept = [{"name": p.name, "data": p} for p in optimizer.get_parameters()]
        ms.save_checkpoint([*kept, step], str(given.folder / "optimizer.ckpt"))
        amp.save(state, weights=True)
    if rank == 0:
        net.set_train(False)
        with amp.autocast():
            guess = net(Tensor(data.x_test[:500])).asnumpy().argmax(1)
        accuracy = np.mean(guess == data.y_test[:500])
        print(f"test accuracy {accuracy:.3f}, {amp.state.skipped_steps} steps skipped")


if __name__ == "__main__":
    main()
