"""What hangs on all of torch goes with the last prepared model.

In a process of its own: models that other tests prepared may still live in this one.
"""

from __future__ import annotations

import gc
import subprocess
import sys

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import _global_optimizer_pre_hooks

import mpcore as mp

REGISTRATION = (
    torch_module._global_module_registration_hooks,
    torch_module._global_parameter_registration_hooks,
)


def prepared() -> mp.Amp:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return mp.prepare(model, torch.optim.AdamW(model.parameters(), 0.01), "mixed_bfloat16")


def the_hook_for_all_optimizers() -> None:
    assert not _global_optimizer_pre_hooks
    first = prepared()
    assert len(_global_optimizer_pre_hooks) == 1
    second = prepared()
    assert len(_global_optimizer_pre_hooks) == 1
    first.release()
    assert len(_global_optimizer_pre_hooks) == 1
    del second
    gc.collect()
    prepared().release()
    assert not _global_optimizer_pre_hooks


def the_hooks_of_registration() -> None:
    assert [len(table) for table in REGISTRATION] == [0, 0]
    first, second = prepared(), prepared()
    assert [len(table) for table in REGISTRATION] == [1, 1]
    first.release()
    assert [len(table) for table in REGISTRATION] == [1, 1]
    second.release()
    assert [len(table) for table in REGISTRATION] == [0, 0]


def test_hooks_on_all_of_torch_go_with_the_last_prepared_model():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["both", "went"], done.stderr


if __name__ == "__main__":
    the_hooks_of_registration()
    the_hook_for_all_optimizers()
    print("both went")
