"""Two ranks over gloo: DDP, FSDP2 and replicas averaged by hand; run with --backend torch."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.backend("torch"),
    pytest.mark.slow,
    pytest.mark.usefixtures("warm_workers"),
]

WORKER = Path(__file__).with_name("worker_torch.py")
LIMIT = 600.0  # seconds for one scenario; a rank that waits for the other would wait for ever


class Ranks:
    """Two processes that run scenarios side by side; started anew after one failed."""

    def __init__(self, folder: Path):
        self.folder, self.number = folder, 0
        self.ranks, self.lines, self.readers = [], [], []

    def start(self):
        self.number += 1
        store = self.folder / f"store{self.number}"
        env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        for rank in range(2):
            command = [sys.executable, WORKER, str(rank), "2", store]
            self.ranks.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
                )
            )
        self.lines = [queue.Queue() for _ in self.ranks]
        self.readers = [
            threading.Thread(target=self.read, args=pair, daemon=True)
            for pair in zip(self.ranks, self.lines, strict=True)
        ]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def read(process, lines):
        with process.stdout:
            for line in process.stdout:
                lines.put(line)
        lines.put("")

    def stop(self):
        for process in self.ranks:
            process.kill()
            process.wait()
            process.stdin.close()
        for reader in self.readers:
            reader.join()
        self.ranks, self.readers = [], []

    def __call__(self, scenario):
        if not self.ranks:
            self.start()
        for process in self.ranks:
            process.stdin.write(f"{scenario}\n")
            process.stdin.flush()
        told, errors = [], []
        for lines in self.lines:
            try:
                answer = json.loads(lines.get(timeout=LIMIT) or '{"error": "the rank has ended"}')
            except queue.Empty:
                answer = {"error": f"no answer within {LIMIT} s"}
            errors += [answer["error"]] if "error" in answer else []
            told.append(answer.get("told"))
        if errors:
            self.stop()
            pytest.fail("\n".join(errors))
        return told


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    started = Ranks(tmp_path_factory.mktemp("ranks"))
    yield started
    started.stop()


def same(told):
    assert told[0] == told[1]
    return told[0]


def test_native_scaler_lets_the_ranks_part(ranks):
    """P17: found_inf stays on its rank."""
    one, two = ranks("native_scaler_without_a_word_between_ranks")
    assert (one["scale"], two["scale"]) == (2.0**16, 2.0**15)
    assert one["weights"] != two["weights"]


def test_inf_in_the_local_gradients_of_one_rank_stops_all(ranks):
    one, two = ranks("local_inf_stops_all_ranks")
    assert one["stepped"] == two["stepped"] == [True, True, False, True]
    assert one["state"] == two["state"]
    assert one["state"][:3] == [512.0, 1, 1]
    assert one["weights"] == two["weights"]


def test_without_agreement_they_part(ranks):
    one, two = ranks("ranks_that_do_not_agree_part")
    assert (one["stepped"][2], two["stepped"][2]) == (True, False)
    assert one["weights"] != two["weights"]
    assert one["state"] != two["state"]


def test_micro_batch_that_is_bad_on_one_rank_is_dropped_on_all(ranks):
    told = same(ranks("replicas_drop_the_same_micro_batches"))
    assert (told["stepped"], told["dropped"]) == ([True], [2])


def test_step_is_judged_on_all_ranks_and_the_culprit_named_where_it_is(ranks):
    one, two = ranks("step_that_one_rank_overflows_in")
    assert (one["culprit"], two["culprit"]) == (None, "0.weight")
    assert one["stepped"] == two["stepped"] == [False]
    assert one["buffers"]
    assert two["buffers"]
    assert one["weights"] == two["weights"]


def test_twenty_mixed_steps_under_ddp_equal_a_run_without_the_bad_ones(ranks):
    told = same(ranks("ddp_mixed_steps"))
    assert len(told) == 12
    for name, run in told.items():
        kind = name.rpartition(" ")[0]
        assert run["weights"] == told[f"{kind} good"]["weights"], name
        if not name.endswith("good"):
            assert run["stepped"].count(False) == 10, name


def test_window_under_no_sync_is_skipped_on_all_ranks(ranks):
    one, two = ranks("ddp_windows_under_no_sync")
    assert one == two
    for run in one.values():
        assert run["stepped"] == [True, False, True]
    for quiet, loud in zip(one["quiet"]["values"], one["loud"]["values"], strict=True):
        assert quiet == pytest.approx(loud, rel=1e-5)


def test_no_sync_is_refused_where_it_would_lose_gradients(ranks):
    told = same(ranks("no_sync_where_gradients_are_added_up_apart_is_refused"))
    for name in ("drop", "low"):
        assert "DDP must synchronise each of them: leave out no_sync()" in told[name]
        assert told[f"{name} after"]


def test_ranks_drop_different_micro_batches_together(ranks):
    told = same(ranks("ranks_drop_the_same_micro_batches"))
    assert len(told) == 8
    for run in told.values():
        assert (run["stepped"], run["dropped"]) == ([True], [2])
        assert run["state"][0] == 512.0


def test_two_optimizers_with_a_loss_each_under_ddp(ranks):
    same(ranks("two_optimizers_and_losses_under_ddp"))


def test_ranks_keep_the_same_layer_full_where_one_of_them_overflows(ranks):
    told = same(ranks("ranks_keep_the_same_layer_full"))
    for stepped, kept, _, said in told.values():
        assert stepped == [True, False, True, False, True, True]
        assert kept == ["full path=big"]
        assert len(said) == 1


def test_sharded_parameters_are_not_kept_full(ranks):
    told = same(ranks("sharded_models_are_not_kept_full"))
    assert "sharded over ranks" in told["error_said"]


def test_fsdp_trains_like_one_process(ranks):
    told = same(ranks("fsdp_equals_one_process"))
    assert set(told) == {"float32 layer", "bfloat16 layer", "bfloat16 op"}


def test_fsdp_skips_on_all_ranks(ranks):
    told = same(ranks("fsdp_skips_on_all_ranks"))
    for run in told.values():
        assert run["stepped"] == [True, False, True, False]
        assert run["state"][0] == 256.0
        assert run["culprit"] == "0.weight"


def test_fsdp_nan_in_one_shard_stops_all(ranks):
    told = same(ranks("fsdp_local_inf_in_one_shard"))
    assert (told["stepped"], told["culprit"]) == ([False], "0.weight")


def test_fsdp_norm_of_huge_finite_gradients(ranks):
    told = same(ranks("fsdp_huge_finite_gradients"))
    assert told["stepped"]
    assert told["expected"] > 1e20
    assert told["norm"] == pytest.approx(told["expected"], rel=1e-5)


def test_fsdp_beside_layers_that_are_not_sharded(ranks):
    told = same(ranks("fsdp_beside_replicas"))
    assert told == {f"{c} {b}": b == 1e25 for c in (None, 1.0) for b in ("inf", "nan", 1e25)}


def test_fsdp_drops_micro_batches_together(ranks):
    told = same(ranks("fsdp_drops_micro_batches"))
    assert told["dropped"] == [1, 0]
    assert told["stepped"]


def test_fsdp_refuses_what_it_cannot_do(ranks):
    told = same(ranks("fsdp_refusals"))
    assert "already are float32 masters, in shards; use by='layer'" in told["model"]
    assert "shard the model first, then make the optimizer, then prepare" in told["late"]
    assert "leave out set_requires_gradient_sync(False)" in told["quiet"]


def test_fsdp_teacher_is_put_back(ranks):
    assert same(ranks("fsdp_guarded_teacher"))["changed"]


def test_fsdp_losses_by_optimizer(ranks):
    same(ranks("fsdp_two_losses"))


def test_rank_that_fails_is_reported_and_the_next_scenario_runs(ranks):
    with pytest.raises(pytest.fail.Exception, match="KeyError: 'no such scenario'"):
        ranks("no such scenario")
    assert ranks("fsdp_two_losses") == [{}, {}]
