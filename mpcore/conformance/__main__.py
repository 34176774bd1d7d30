"""``python -m mpcore.conformance NAME [--kit MODULE:OBJECT] [options of pytest]``."""

from __future__ import annotations

import sys

from mpcore.conformance.run import main

sys.exit(main(sys.argv[1:]))
