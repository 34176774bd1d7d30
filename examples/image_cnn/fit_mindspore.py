"""Train the image CNN by ms.Model.train, as a run that may be killed: start it again, it goes on.

    python examples/image_cnn/fit_mindspore.py --policy mixed_float16 --folder run

Clipping and accumulation are the train cell's; the schedule and an average of the weights are held
on skipped steps; the checkpoint is MindSpore's own. On a CPU convolutions are slow, and bfloat16 is
simulated.
"""

import argparse
from pathlib import Path

import experiment
import mindspore as ms
from mindspore import Tensor, nn
from mindspore.train import Callback, CheckpointConfig, ModelCheckpoint

import mpcore as mp

cross_entropy = nn.CrossEntropyLoss()


class Log(Callback):
    """Prints what a step did: behind the callback of ``amp``, which reads it."""

    def __init__(self, amp):
        super().__init__()
        self.amp = amp

    def on_train_step_end(self, run_context):
        last = self.amp.last
        done = f"norm {float(last.grad_norm):.3f}" if last.stepped else f"skipped: {last.reason}"
        print(f"loss {float(last.loss):.4f}  scale {float(last.scale):g}  {done}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_float16")
    parser.add_argument("--folder", type=Path, default=Path("run"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()

    data = experiment.data()
    ms.set_seed(0)
    ms.runtime.launch_blocking()
    net = experiment.build_mindspore().set_train()
    rate = nn.CosineDecayLR(1e-4, 2e-3, given.steps)
    optimizer = nn.Adam(net.trainable_params(), rate)
    amp = mp.prepare(net, optimizer, given.policy)

    def loss_fn(x, y):
        return cross_entropy(net(x), y)

    cell = amp.train_cell(loss_fn, clip_norm=1.0, micro_batches=2)

    saved = sorted(given.folder.glob("run*.ckpt"), key=lambda path: path.stat().st_mtime)
    if saved:  # weights, moments, scale and counters
        ms.load_param_into_net(cell, ms.load_checkpoint(str(saved[-1])))
    begun = int(optimizer.global_step.asnumpy()[0]) + amp.state.skipped_steps
    rows = slice(begun * given.batch, given.steps * given.batch)
    dataset = ms.dataset.NumpySlicesDataset(
        (data.x_train[rows], data.y_train[rows]), ["x", "y"], shuffle=False
    ).batch(given.batch)

    average = mp.EMA(amp, decay=0.9)  # of the float32 values
    config = CheckpointConfig(save_checkpoint_steps=10, keep_checkpoint_max=2)
    ms.Model(cell).train(
        1,
        dataset,
        callbacks=[amp.callback(), Log(amp), ModelCheckpoint("run", str(given.folder), config)],
        dataset_sink_mode=False,
    )

    net.set_train(False)
    with average, amp.autocast():
        guess = net(Tensor(data.x_test[:500])).asnumpy().argmax(1)
    print(
        f"began at step {begun}, test accuracy {(guess == data.y_test[:500]).mean():.3f}, "
        f"{amp.state.skipped_steps} steps skipped, scale {amp.scale:g}, {given.policy}"
    )


if __name__ == "__main__":
    main()
