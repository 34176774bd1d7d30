"""A safetensors file that lacks float32 values says so, once; one that lacks none says nothing."""

from __future__ import annotations

import pytest
from heard import told

import mpcore as mp

pytestmark = pytest.mark.backend("torch")
torch = pytest.importorskip("torch")
files = pytest.importorskip("safetensors.torch")


def prepared(policy):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy)
    amp.step(lambda x: model(x).float().square().mean(), torch.ones(4, 4))
    return model, amp


@pytest.mark.parametrize("policy", ["model_bfloat16", "model_bfloat16, master=split"])
@pytest.mark.parametrize("way", ["file", "bytes", "model", "part"])
def test_a_file_without_the_float32_values_says_so_once(policy, way, tmp_path):
    model, amp = prepared(policy)
    path = str(tmp_path / "m.safetensors")

    def save():
        if way == "file":
            files.save_file(model.state_dict(), path)
        elif way == "bytes":
            files.save(model.state_dict())
        elif way == "model":
            files.save_model(model, path)
        else:
            files.save_file({"w": model[1].weight}, path)

    (one,) = told(save)
    assert "16-bit values of 4 parameters" in str(one.message)
    assert "amp.state_dict()" in str(one.message)
    assert one.filename == __file__
    assert not told(save)
    amp.release()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16, master=none"])
def test_a_file_that_has_all_there_is_says_nothing(policy, tmp_path):
    model, amp = prepared(policy)
    assert not told(lambda: files.save_file(model.state_dict(), tmp_path / "m.safetensors"))
    amp.release()


def test_float32_values_and_tensors_of_others_are_saved_without_a_word(tmp_path):
    model, amp = prepared("model_bfloat16")
    arrays = {name: torch.from_numpy(each) for name, each in amp.weights().items()}
    assert not told(lambda: files.save_file(arrays, tmp_path / "m.safetensors"))
    other = {"w": torch.ones(3, dtype=torch.bfloat16)}
    assert not told(lambda: files.save_file(other, tmp_path / "n.safetensors"))
    amp.release()
    model.to(torch.bfloat16)
    assert not told(lambda: files.save_file(model.state_dict(), tmp_path / "o.safetensors"))


def test_safetensors_is_as_it_was_once_no_model_needs_it():
    names = [name for name in ("_flatten_as_ptr", "_flatten") if hasattr(files, name)]
    assert names, "safetensors hands its tensors on by another name now"
    first, second = prepared("model_bfloat16")[1], prepared("model_bfloat16")[1]
    assert all(getattr(files, name).__module__ == "mpcore_torch.saving" for name in names)
    first.release()
    assert all(getattr(files, name).__module__ == "mpcore_torch.saving" for name in names)
    second.release()
    saving = __import__("mpcore_torch.saving").saving
    if not saving._MARKED:  # what another test has left alive may hold it
        assert all(getattr(files, name).__module__ == "safetensors.torch" for name in names)
