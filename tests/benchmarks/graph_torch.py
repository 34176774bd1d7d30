"""What by="graph" gives in torch on the ten models of the zoo, and beside by=op, on a CPU.

    python tests/benchmarks/graph_torch.py [bits casts onnx times search] [--rounds 40]

- bits: losses, first gradients, weights and buffers after three steps, against autocast's.
- casts: of one step (see tests/backends/graph_casts_torch.py) under each place, by=op, by=layer.
- onnx: files under float16, run in onnxruntime; casts under each place.
- times: seconds to prepare a GPT; ratio of a step to one by=op, CPU time, in turn.
- search: the frontier of two models; what was predicted beside whole forward and backward passes.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from apart import apart
from graph_colours import plan_by_colours
from results_file import keep
from torch.nn import functional

import mpcore as mp

sys.path += [str(Path(__file__).parents[1] / name) for name in ("backends", "zoo")]

import zoo
from graph_casts_torch import counted
from graph_models_torch import attention, convnet, gpt, resnet18, shared, tokens_loss
from zoo_torch import ZOO

from mpcore_torch import graph_plan

MORE = {
    "resnet18": resnet18,
    "gpt of four blocks": partial(gpt, 256, 4, 256, 128, 8),
    "convnet": convnet,
    "shared": shared,
    "attention": attention,
}
PLACES = ("list", "exact", "cheapest")
STEPS = 8  # of each in a round, one by one in turn


def model_of(name):
    """Return a model and its input."""
    torch.manual_seed(0)
    if name in MORE:
        model, (x, _), _ = MORE[name]()
        return model, x
    entry = ZOO[name]
    model = entry.build()
    return model, entry.tensors(entry.batch(zoo.generator(name)))[0]


def loss(out):
    return functional.softplus(out.float()).mean()


def trained(name, policy, steps=3):
    model, x = model_of(name)
    options = {"example": x} if "graph" in policy else {}
    amp = mp.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3), policy, **options)
    seen = []
    for step in range(steps):
        torch.manual_seed(step)
        seen.append(torch.tensor(float(amp.step(lambda: loss(model(x))).loss)))
        if not step:
            seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return seen + [t.detach().clone() for t in model.state_dict().values()]


def bits(rounds):
    del rounds
    found = {}
    for name in zoo.NAMES:
        for dtype in ("bfloat16", "float16"):
            row = found.setdefault(name, {})
            try:
                expected = trained(name, f"autocast_{dtype}, by=op")
            except (mp.MpcoreError, RuntimeError) as exc:
                row[dtype] = f"autocast itself: {str(exc)[:80]}"
                continue
            for place in ("list", "exact"):
                made = trained(name, f"autocast_{dtype}, by=graph, place={place}")
                same = sum(map(torch.equal, expected, made))
                row[f"{dtype} {place}"] = f"{same} of {len(expected)}"
        print(name, found[name], flush=True)
    return found


def casts(rounds):
    """Casts of fifteen models; grappler's plan runs in the place of the cheapest."""
    del rounds
    found = {}
    policies = ("mixed_bfloat16, by=layer", "autocast_bfloat16, by=op", *PLACES, "grappler")
    for name in (*zoo.NAMES, *MORE):
        row = found.setdefault(name, {})
        for policy in policies:
            place = "cheapest" if policy == "grappler" else policy
            text = policy if "," in policy else f"autocast_bfloat16, by=graph, place={place}"
            model, x = model_of(name)
            options = {"example": x} if "graph" in text else {}
            with coloured() if policy == "grappler" else contextlib.nullcontext():
                optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
                amp = mp.prepare(model, optimizer, text, **options)
            torch.manual_seed(0)
            try:
                with amp.autocast():
                    made = counted(model, partial(model, x), loss)
            except RuntimeError as exc:  # a layer's weight beside one of float32
                row[policy] = f"does not run: {str(exc)[:80]}"
                continue
            row[policy] = {**made._asdict(), "kept": round(made.kept, 3)}
        least = row["cheapest"]
        others = [row[p] for p in policies if p != "cheapest" and isinstance(row[p], dict)]
        row["cheapest is never above"] = all(
            least[what] <= other[what] for other in others for what in ("elements", "kept")
        )
        print(name, row, flush=True)
    return found


@contextlib.contextmanager
def coloured():
    """Let plans be grappler's while this is open."""
    before = graph_plan.place

    def place(graph, words, low, how, *, results, output=""):
        return plan_by_colours(graph, words, low, results)

    graph_plan.place = place
    try:
        yield
    finally:
        graph_plan.place = before


def onnx(rounds):
    del rounds
    found = {}
    for name in zoo.NAMES:
        row = found.setdefault(name, {})
        for place in PLACES:
            model, x = model_of(name)
            policy = f"autocast_float16, by=graph, place={place}"
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
                try:
                    made = mp.export(model.eval(), Path(folder) / "m.onnx", policy, x)
                except mp.MpcoreError as exc:
                    row[place] = f"refused: {str(exc)[:100]}"
                    continue
            row[place] = {
                "casts": len(made.plan.casts),
                "difference": float(f"{made.difference:.1e}"),
                "checks": [str(check) for check in made.checks],
            }
        print(name, row, flush=True)
    return found


def times(rounds):
    torch.manual_seed(0)
    made = gpt(256, 4, 256, 128, 4)
    begin = time.process_time()
    amp = mp.prepare(made[0], None, "autocast_bfloat16, by=graph", example=made[1][0])
    found = {"prepare_gpt_of_four_blocks_s": round(time.process_time() - begin, 2)}
    found["calls"] = len(amp.graphs[0].graph.nodes)
    found["step_over_by_op"] = {
        "2 blocks of 32, batch 2 of 16": in_turn(steps_of(32, 2, 32, 16, 2), rounds),
        "2 blocks of 128, batch 4 of 64": in_turn(steps_of(128, 2, 64, 64, 4), rounds),
        "4 blocks of 256, batch 4 of 128": in_turn(steps_of(256, 4, 256, 128, 4), rounds),
    }
    print(found, flush=True)
    return found


def steps_of(*sizes):
    """Return, by how it is prepared, a function that takes a step of a GPT."""
    steps = {}
    for how in ("autocast_bfloat16, by=op", "mixed_bfloat16, by=layer", *PLACES):
        text = how if "," in how else f"autocast_bfloat16, by=graph, place={how}"
        torch.manual_seed(0)
        model, (x, y), _ = gpt(*sizes)
        options = {"example": x} if "graph" in text else {}
        amp = mp.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3), text, **options)
        steps[how] = lambda amp=amp, model=model, x=x, y=y: amp.step(
            lambda: tokens_loss(model(x), y)
        )
    return steps


def in_turn(steps, rounds):
    """Return quartiles of the ratio of each to the first; of a round, whose steps alternate."""
    taken = {name: [] for name in steps}
    for index in range(rounds + 3):
        spent = dict.fromkeys(steps, 0.0)
        for turn in range(STEPS):
            for name in list(steps) if (index + turn) % 2 else list(steps)[::-1]:
                begin = time.process_time()
                steps[name]()
                spent[name] += time.process_time() - begin
        if index >= 3:
            for name, seconds in spent.items():
                taken[name].append(seconds)
    first = taken[next(iter(steps))]
    return {
        name: {
            "min_ms": round(min(own) / STEPS * 1e3, 3),
            "ratio_quartiles": [
                round(q, 3)
                for q in statistics.quantiles([a / b for a, b in zip(own, first, strict=True)], n=4)
            ],
        }
        for name, own in taken.items()
    }


def search(rounds):
    """Plans of the frontier, and whether whole passes come in the order that was predicted."""
    found = {}
    for name, make in (("gpt", lambda: gpt(128, 2, 64, 64, 4)), ("resnet18", resnet18)):
        torch.manual_seed(0)
        model, (x, _), _ = make()
        text = "autocast_bfloat16, by=graph"
        (timed,) = mp.graph.time_graph(model, text, x)
        begin = time.process_time()
        plans = mp.graph.search(model, text, x, timed=timed)
        took = time.process_time() - begin
        some = plans[:: max(1, len(plans) // 5)] if len(plans) > 6 else plans
        passes = {}
        for number, plan in enumerate(some):
            torch.manual_seed(0)
            model, (x, _), _ = make()
            rules = f"{text}; {plan.rules()}"
            amp = mp.prepare(model, None, rules, example=x)

            def run(amp=amp, model=model, x=x):
                with amp.autocast():
                    out = model(x)
                out.float().square().mean().backward()
                model.zero_grad()

            passes[str(number)] = run
        measured = in_turn(passes, rounds)
        rows = [
            {
                "predicted_ms": round(plan.seconds * 1e3, 3),
                "error": round(plan.error, 6),
                **row,
            }
            for plan, row in zip(some, measured.values(), strict=True)
        ]
        found[name] = {
            "plans": len(plans),
            "search_s": round(took, 2),
            "measured": rows,
            "apart": apart(rows),
        }
        print(name, found[name], flush=True)
    return found


PARTS = {"bits": bits, "casts": casts, "onnx": onnx, "times": times, "search": search}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.parts:
        found = PARTS[name](given.rounds)
        keep(f"graph_torch_{name}", torch=torch.__version__, threads=1, found=found)


if __name__ == "__main__":
    main()
