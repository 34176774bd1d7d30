"""MindSpore: a step of `amp.step` under compile="never" and "auto", beside native ones.

    python tests/benchmarks/compiled_steps.py --models mlp,cnn,transformer

The ways alternate in one process, a few steps each; medians, tenths and the ratio of neighbours in
time to compile="never". The time that the trial took is what `amp.compiled_steps` says.
"""

from __future__ import annotations

import argparse
import time

import mindspore as ms
import step_mindspore as bench
from alternate import CLOCKS, STEPS, quantile
from in_turn import rounds
from mindspore import Tensor, nn
from results_file import keep
from step_overhead import batches

import mpcore as mp


def ways(model: str, x, y):
    def ours(choice):
        net = bench.build(model)
        optimizer = nn.Adam(net.trainable_params(), 1e-4)
        amp, loss = mp.prepare(net, optimizer, "mixed_float16", compile=choice), bench.Loss(net)
        return amp, lambda: amp.step(loss, x, y).loss

    native = bench.variants(model, x.asnumpy(), y.asnumpy())
    auto, step = ours("auto")
    return auto, {
        "never": ours("never")[1],
        "auto": step,
        "native, eager": native["native"],
        "native, ms.jit": native["native, ms.jit"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="mlp,cnn,transformer")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--no-write", action="store_true", help="print only")
    given = parser.parse_args()
    bench.set_threads(1)
    now, rows = CLOCKS[given.clock], []
    for model in given.models.split(","):
        x, y = map(Tensor, batches(model))
        auto, steps = ways(model, x, y)
        trial = time.monotonic()
        steps["auto"]()
        trial = time.monotonic() - trial
        (said,) = auto.compiled_steps.values()
        for step in steps.values():
            for _ in range(5):
                step()
        times = {name: [] for name in steps}
        for _, order in rounds(steps, given.rounds):
            for name in order:
                start = now()
                for _ in range(STEPS):
                    steps[name]()
                times[name].append((now() - start) / STEPS * 1e3)
        print(f"\n{model}: {said}")
        for name, values in times.items():
            ratios = [a / b for a, b in zip(values, times["never"], strict=True)]
            row = {"model": model, "way": name, "median_ms": round(quantile(values, 0.5), 3)}
            row |= {"p10_ms": round(quantile(values, 0.1), 3)}
            row |= {"p90_ms": round(quantile(values, 0.9), 3)}
            row |= {"ratio_to_never": round(quantile(ratios, 0.5), 4)}
            row |= {"trial_s": round(trial, 1)} if name == "auto" else {}
            rows.append(row)
            print(f"  {name:<16}{row['median_ms']:9.3f} ms  {row['ratio_to_never']:6.3f} x never")
    if not given.no_write:
        about = {"versions": {"mindspore": ms.__version__}, "threads": 1, "device": "cpu"}
        about |= {"rounds": given.rounds, "steps_a_round": STEPS, "clock": given.clock}
        keep("compiled_steps", **about, rows=rows)


if __name__ == "__main__":
    main()
