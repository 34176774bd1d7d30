"""Train the image CNN in tf.keras, in Keras' own style: compile and fit.

python examples/image_cnn/train_keras.py --policy mixed_float16
"""

import argparse

import experiment
import keras

import mpcore as mp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    given = parser.parse_args()

    data = experiment.data()
    x_train, x_test = (x.transpose(0, 2, 3, 1) for x in (data.x_train, data.x_test))
    keras.utils.set_random_seed(0)
    model = experiment.build_tensorflow()
    schedule = keras.optimizers.schedules.CosineDecay(1e-3, given.steps)
    amp = mp.prepare(model, keras.optimizers.AdamW(schedule), given.policy)
    print(amp.plan)

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=amp.optimizer, loss=loss, metrics=["accuracy"])
    count = given.steps * given.batch
    epochs = max(1, -(-count // len(x_train)))
    model.fit(
        x_train[:count],
        data.y_train[:count],
        batch_size=given.batch,
        epochs=epochs,
        steps_per_epoch=-(-given.steps // epochs),
        verbose=2,
    )
    _, accuracy = model.evaluate(x_test, data.y_test, verbose=0)
    print(
        f"test accuracy {accuracy:.3f}, {amp.state.skipped_steps} steps skipped, "
        f"scale {amp.scale:g}"
    )


if __name__ == "__main__":
    main()
