"""Whether ``split`` and ``join`` are exact: every one of the 2^32 float32 patterns is tried.

    python tests/benchmarks/split_exhaustive.py                  # some minutes on two cores
    python tests/benchmarks/split_exhaustive.py --workers 8
    python tests/benchmarks/split_exhaustive.py --share 0.01 --no-write

For each rounding: is the high half what another formula gives, does ``join`` return every bit (of a
NaN: the canonical one), how many values are in the list of ties, and how many finite ones read as
infinity. For ``kahan``: how far its sum is from values of 2^-116 and more. Ends with code 1 if a
pattern is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import ml_dtypes
import numpy as np
from results_file import keep

import mpcore as mp
from mpcore.numerics.master_weights import compensate, join, restore, split

CHUNK = 2**20  # patterns at a time: its arrays stay in the processor's cache
CHUNKS = 2**32 // CHUNK
ROUNDINGS = ("nearest", "away", "truncate")
KAHAN_LEAST = 2.0**-116  # below it the remainder is a subnormal of few bits


def kinds(bits: np.ndarray) -> dict[str, np.ndarray]:
    """Return a mask per kind of number; each pattern is in exactly one."""
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    return {
        "zero": (exponent == 0) & (fraction == 0),
        "subnormal": (exponent == 0) & (fraction != 0),
        "normal": (exponent != 0) & (exponent != 0xFF),
        "infinity": (exponent == 0xFF) & (fraction == 0),
        "nan": (exponent == 0xFF) & (fraction != 0),
    }


def other_formula(values: np.ndarray, bits: np.ndarray, rounding: str) -> np.ndarray:
    """Return the high half, without the code under test: by another library, or from the bits."""
    if rounding == "nearest":
        return values.astype(ml_dtypes.bfloat16).view(np.uint16)
    high = (bits >> 16).astype(np.uint16)
    return high if rounding == "truncate" else high + ((bits >> 15) & 1).astype(np.uint16)


def check(chunk: int) -> tuple[dict[str, Counter], float]:
    """Return counts by rounding for one chunk of patterns, and the largest error of kahan."""
    bits = np.arange(chunk * CHUNK, (chunk + 1) * CHUNK, dtype=np.int64).astype(np.uint32)
    values, kind = bits.view(np.float32), kinds(bits)
    nan = kind["nan"]
    wanted = np.where(nan, np.uint32(0x7FC00000), bits)
    found = {"all": Counter({name: int(mask.sum()) for name, mask in kind.items()})}
    finite = kind["zero"] | kind["subnormal"] | kind["normal"]
    for rounding in ROUNDINGS:
        high, rest, ties = split(values, rounding)
        with np.errstate(invalid="ignore"):
            right = high == other_formula(values, bits, rounding)
        right[nan] = high[nan] == 0x7FC0
        same = join(high, rest, rounding, ties).view(np.uint32) == wanted
        infinite = finite & ((high & 0x7FFF) == 0x7F80)
        found[rounding] = Counter(
            wrong_high=int((~right).sum()),
            not_restored=int((~same).sum()),
            ties_listed=len(ties),
            finite_reads_infinity=int(infinite.sum()),
        ) + Counter({f"exact_{name}": int((mask & same).sum()) for name, mask in kind.items()})
    fits = finite & ((split(values, "nearest")[0] & 0x7FFF) < 0x7F80)
    fits &= np.abs(np.where(finite, values, 0)) >= KAHAN_LEAST
    value = values[fits].astype(np.float64)
    error = np.abs(restore(*compensate(values[fits])) - value) / np.abs(value)
    return found, float(error.max(initial=0.0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--share", type=float, default=1.0, help="of the chunks, evenly spaced")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    count = max(1, round(CHUNKS * args.share))
    chunks = [index * CHUNKS // count for index in range(count)]
    start, totals, worst = time.perf_counter(), {}, 0.0
    with ProcessPoolExecutor(args.workers) as pool:
        for done, (found, error) in enumerate(pool.map(check, chunks, chunksize=4), start=1):
            worst = max(worst, error)
            for name, counts in found.items():
                totals.setdefault(name, Counter()).update(counts)
            if done % 64 == 0 or done == count:
                print(f"\r{done / count:4.0%} {time.perf_counter() - start:5.0f} s", end="")
    print()
    bad = sum(totals[r]["wrong_high"] + totals[r]["not_restored"] for r in ROUNDINGS)
    result = {
        "workers": args.workers,
        "seconds": round(time.perf_counter() - start, 1),
        "versions": {
            "mpcore": mp.__version__,
            "numpy": np.__version__,
            "ml_dtypes": ml_dtypes.__version__,
        },
        "patterns": count * CHUNK,
        "exact": bad == 0,
        "kinds": dict(totals["all"]),
        "roundings": {
            name: {key: totals[name][key] for key in sorted({*totals[name], *_SHOWN})}
            for name in ROUNDINGS
        },
        "kahan_largest_relative_error": worst,
    }
    print(json.dumps(result, indent=2))
    if not args.no_write:
        keep("split_exhaustive", **result)
    return 1 if bad else 0


_SHOWN = ("wrong_high", "not_restored", "ties_listed", "finite_reads_infinity")

if __name__ == "__main__":
    sys.exit(main())
