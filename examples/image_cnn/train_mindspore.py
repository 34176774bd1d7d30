"""Train the image CNN in MindSpore, in its own style: a train cell, compiled by ms.jit.

    python examples/image_cnn/train_mindspore.py --policy mixed_float16

On a CPU bfloat16 is simulated, and convolutions take about a second a step at batch 64.
"""

import argparse

import experiment
import mindspore as ms
from mindspore import Tensor, nn

import mpcore as mp

cross_entropy = nn.CrossEntropyLoss()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_float16")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()

    data = experiment.data()
    ms.set_seed(0)
    net = experiment.build_mindspore().set_train()
    optimizer = nn.Adam(net.trainable_params(), 1e-3)
    amp = mp.prepare(net, optimizer, given.policy)
    print(amp.plan)

    def loss_fn(x, y):
        return cross_entropy(net(x), y)

    cell = amp.train_cell(loss_fn, clip_norm=1.0)

    @ms.jit
    def train_step(x, y):
        return cell(x, y)

    for step, (x, y) in enumerate(data.batches(given.steps, given.batch, seed=0)):
        loss, finite, *_ = train_step(Tensor(x), Tensor(y))
        if not finite:
            print(f"step {step} skipped, scale {amp.scale:g}")
        if step % 10 == 0 or step == given.steps - 1:
            print(f"step {step:4}  loss {float(loss):.4f}  scale {amp.scale:g}")

    net.set_train(False)
    with amp.autocast():
        guess = net(Tensor(data.x_test[:500])).asnumpy().argmax(1)
    print(
        f"test accuracy {(guess == data.y_test[:500]).mean():.3f}, "
        f"{amp.state.skipped_steps} steps skipped"
    )


if __name__ == "__main__":
    main()
