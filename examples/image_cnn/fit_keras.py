"""Train the image CNN by Keras' fit, as a run that may be killed: start it again, it goes on.

python examples/image_cnn/fit_keras.py --policy mixed_float16 --folder run

Clipping, accumulation, a schedule and an average of the weights are those of the Keras optimizer;
with the policy they see true gradients, and a skipped step moves none of them.
"""

import argparse
from pathlib import Path

import experiment
import keras

import mpcore as mp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--folder", type=Path, default=Path("run"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=64)
    given = parser.parse_args()

    data = experiment.data()
    x_train, x_test = (x.transpose(0, 2, 3, 1) for x in (data.x_train, data.x_test))
    x_train, y_train = x_train[: given.rows], data.y_train[: given.rows]
    keras.utils.set_random_seed(0)
    model = experiment.build_tensorflow()
    steps = given.epochs * -(-len(x_train) // given.batch)
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(2e-3, steps),
        global_clipnorm=1.0,
        gradient_accumulation_steps=2,
        use_ema=True,
        ema_momentum=0.9,
    )

    amp = mp.prepare(model, optimizer, given.policy)  # these two lines are all
    model.compile(
        optimizer=amp.optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    given.folder.mkdir(exist_ok=True)
    history = model.fit(
        x_train,
        y_train,
        batch_size=given.batch,
        epochs=given.epochs,
        shuffle=False,  # so that a resumed run sees what it would have seen
        verbose=2,
        callbacks=[
            amp.callback(),  # the true norm and the loss scale in the logs; a word on collapse
            keras.callbacks.BackupAndRestore(str(given.folder / "backup")),
            keras.callbacks.CSVLogger(given.folder / "log.csv", append=True),
        ],
    )
    _, accuracy = model.evaluate(x_test, data.y_test, verbose=0)
    norm = history.history.get("grad_norm", [float("nan")])[-1]
    print(
        f"test accuracy {accuracy:.3f}, {amp.state.skipped_steps} steps skipped, "
        f"scale {amp.scale:g}, last norm {norm:.3f}"
    )


if __name__ == "__main__":
    main()
