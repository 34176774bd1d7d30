"""Train the image CNN on several replicas in tf.keras, under tf.distribute.MirroredStrategy.

    python examples/distributed/train_keras.py --replicas 2

On GPUs each is a replica; on a CPU `--replicas` cuts it into logical devices, which shows that it
works and makes nothing faster. `--folder run` saves each epoch, and takes a run up again with any
number of replicas.
"""

import argparse
import sys
from pathlib import Path

import keras
import tensorflow as tf

import mpcore as mp

sys.path.insert(0, str(Path(__file__).parents[1] / "image_cnn"))
import experiment


def strategy_of(replicas):
    """Return a strategy over all GPUs, or over logical devices of the CPU."""
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, parts)
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])


class Save(keras.callbacks.Callback):
    """Keep the run of each epoch: optimizer and weights by Keras, the loss scale by mpcore."""

    def __init__(self, folder, amp):
        super().__init__()
        self.folder, self.amp = folder, amp
        self.epoch = tf.Variable(0, dtype=tf.int64)
        self.kept = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=amp.model, optimizer=amp.optimizer, epoch=self.epoch),
            str(folder / "keras"),
            max_to_keep=1,
        )

    def resume(self):
        if self.kept.restore_or_initialize():
            self.amp.load(self.folder / "run.amp")
        return int(self.epoch.numpy())

    def on_epoch_end(self, epoch, logs=None):
        self.epoch.assign(epoch + 1)
        self.kept.save()
        self.amp.save(self.folder / "run.amp")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--replicas", type=int, default=2, help="on a CPU: logical devices")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=3200, help="of the training data")
    parser.add_argument("--batch", type=int, default=64, help="of all replicas together")
    parser.add_argument("--folder", type=Path, help="where the run is saved, and taken up again")
    given = parser.parse_args()

    strategy = strategy_of(given.replicas)
    data = experiment.data()
    x_train, x_test = (x.transpose(0, 2, 3, 1) for x in (data.x_train, data.x_test))
    keras.utils.set_random_seed(0)
    with strategy.scope():  # model and optimizer inside, everything else outside
        model = experiment.build_tensorflow()
        optimizer = keras.optimizers.AdamW(1e-3)
    amp = mp.prepare(model, optimizer, given.policy)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=amp.optimizer, loss=loss, metrics=["accuracy"])

    save = Save(given.folder, amp) if given.folder else None
    first = save.resume() if save else 0
    print(amp.plan)
    print(f"{strategy.num_replicas_in_sync} replicas, from epoch {first}")
    model.fit(
        x_train[: given.rows],
        data.y_train[: given.rows],
        batch_size=given.batch,
        epochs=given.epochs,
        initial_epoch=first,
        callbacks=[save] if save else [],
        verbose=2,
    )
    _, accuracy = model.evaluate(x_test, data.y_test, verbose=0)
    skipped = amp.state.skipped_steps
    print(f"test accuracy {accuracy:.3f}, {skipped} steps skipped, scale {amp.scale:g}")


if __name__ == "__main__":
    main()
