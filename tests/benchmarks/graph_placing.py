"""CPU seconds of placing the casts of random graphs: ``place`` alone, by its three ways.

    python tests/benchmarks/graph_placing.py [--rounds 9]

Least and median of each, in ``results/graph_placing.json``; the aim is 0.2 s for 1,000 calls and
1 s for 5,000. How the work grows is held by ``tests/core/graph/test_graph_cut.py``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from results_file import keep

sys.path.insert(0, str(Path(__file__).parents[1] / "core" / "graph"))

from random_graphs import random_graph

from mpcore.graph.placing import place

MOST = {1000: 0.2, 5000: 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    found = {}
    for calls, most in MOST.items():
        graph, words = random_graph(calls, 1)
        for how in ("list", "exact", "cheapest"):
            spent = []
            for _ in range(rounds):
                begin = time.process_time()
                place(graph, words, "bfloat16", how)
                spent.append(round(time.process_time() - begin, 4))
            found[f"{how}, {calls} calls"] = {
                "min_s": min(spent),
                "median_s": statistics.median(spent),
                "most_s": most,
            }
            print(f"{how:9}{calls:6} calls  {min(spent):.3f} s (aim: at most {most})")
    keep("graph_placing", rounds=rounds, found=found)


if __name__ == "__main__":
    main()
