"""Executes all facts and writes, or compares, the committed result: ``make facts``.

    python tests/facts/fact_all.py [NAME...] [--write]

A NAME may end in ``*``. Without ``--write`` the exit code says whether the committed result is
what comes out here.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from fact_run import Found, Pair, execute
from fact_table import clashes, table_of

import mpcore_port
from mpcore_port.mindspore.checked import signatures

RESULT = Path(mpcore_port.__file__).parent / "mindspore" / "facts" / "checked.json"


def chosen(patterns: list[str]) -> list[str]:
    """Return the names that some patterns mean, all for none."""

    def fits(name: str) -> bool:
        return any(name == p or (p.endswith("*") and name.startswith(p[:-1])) for p in patterns)

    return [name for name in signatures() if not patterns or fits(name)]


def run(names: list[str], seed: int = 0) -> list[Found]:
    """Run all cases of some names; how far it is goes to stderr."""
    found: list[Found] = []
    with Pair() as pair:
        for place, name in enumerate(names):
            found += execute(pair, [name], seed)
            if sys.stderr.isatty() or place % 50 == 0:
                print(f"{place + 1} of {len(names)}: {name}", file=sys.stderr, flush=True)
    return found


def header() -> dict[str, str]:
    """Return what the result was measured with."""
    versions = {name: metadata.version(name).partition("+")[0] for name in ("torch", "mindspore")}
    return versions | {"device": "CPU; Ascend was not run"}


def written(rows: dict[str, Any]) -> str:
    """Return the file: a row a line, so that a change is seen."""
    lines = [f'"": {json.dumps(header())}']
    lines += [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Run, say what is wrong, and write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = run(chosen(args.names), args.seed)
    rows = table_of(found)
    kept = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    for one in found:
        if one.end in ("differs", "raises") and one.case.why != "edges":
            print(f"{one.end} {one.case.why} {one.case.dtype} {one.case.code} | {one.words[:160]}")
    bad = clashes(found)
    for one in bad:
        print(f"CLASH {one.case.code} | {one.words[:160]}")
    changed = [name for name, row in rows.items() if kept.get(name) != row]
    if args.write:
        kept = kept if args.names else {}
        kept.pop("", None)
        RESULT.write_text(written(kept | rows), "utf-8")
    pairs = sum(len(row.get("params", {})) for row in rows.values())
    same = sum(one.end == "same" for one in found)
    print(f"{len(rows)} names, {pairs} parameters, {len(found)} calls, {same} as in torch")
    print(f"{len(changed)} rows differ from the committed result: {', '.join(changed[:9])}")
    sys.exit(1 if bad or (changed and not args.write) else 0)


if __name__ == "__main__":
    main()
