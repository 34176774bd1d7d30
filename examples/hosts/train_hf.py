"""HF Trainer: a small GPT-2 from its configuration on Tiny Shakespeare; two lines are ours.

python examples/hosts/train_hf.py --policy mixed_bfloat16
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from mpcore_compat.transformers import train_under  # mpcore 1

sys.path.insert(0, str(Path(__file__).parents[1] / "char_transformer"))
import experiment


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()

    data = experiment.data()
    shape = experiment.SHAPE
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape["vocabulary"],
            n_positions=shape["length"],
            n_embd=shape["width"],
            n_layer=shape["blocks"],
            n_head=shape["heads"],
            bos_token_id=0,
            eos_token_id=0,
        )
    )

    def rows(tokens):
        tokens = torch.from_numpy(tokens).long()
        return [{"input_ids": row, "labels": row} for row in tokens]

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=given.steps,
            per_device_train_batch_size=given.batch,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            max_grad_norm=1.0,
            logging_steps=20,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=rows(data.x_train),
            eval_dataset=rows(data.x_test[:500]),
        )
        train_under(trainer, given.policy)  # mpcore 2
        trainer.train()
        found = trainer.evaluate()
    print(f"test loss {found['eval_loss']:.3f}, {given.policy}")


if __name__ == "__main__":
    main()
