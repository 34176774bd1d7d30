"""The number that decides a verdict, in the headline and below."""

from __future__ import annotations

from dataclasses import replace

from mpcore.tools.report.judged import decisive_words, nearness, power_words
from mpcore.tools.report.page import page
from mpcore.tools.report.result import Number, Pair, Result, Run
from mpcore.tools.report.view import pair_views
from mpcore.tools.report.words import decided

NEAR = Number("gradient", 9e-5, 1e-4, tensor="fc1.weight", step=3, shows=1e-4)
FAR = Number("update", 0.2, 1e-4, beyond=True, tensor="fc2.bias", step=1, shows=1e-3)
KNOWN = replace(FAR, size=0.4, tensor="conv.bias", known="bias_gradient_bfloat16")
SAME = Pair("torch", "tensorflow", "float32", "same", numbers=(Number("curve", 0.0, 1e-6), NEAR))


def test_the_number_beyond_noise_decides_and_else_the_nearest_to_it() -> None:
    near = "gradient of one step 9.0e-5 apart (fc1.weight, step 3), where noise explains 1.0e-4"
    assert decisive_words(SAME) == near
    assert 0.8 < nearness(SAME) < 1
    apart = replace(SAME, verdict="different: x", numbers=(NEAR, FAR, KNOWN))
    assert "fc2.bias" in decisive_words(apart)  # not the one that a known difference explains
    assert "2000x what noise explains" in decisive_words(apart)
    known = replace(SAME, verdict="known difference: x", numbers=(NEAR, KNOWN))
    assert decisive_words(known).endswith("the known difference bias gradient bfloat16")
    assert decisive_words(replace(SAME, numbers=())) == ""
    none = Number("zeros", 0.1, 0.0, beyond=True)
    assert "where noise explains none" in decisive_words(replace(SAME, numbers=(none,)))


def test_the_worst_pair_is_quoted_on_top_and_every_number_stands_on_the_page() -> None:
    apart = replace(SAME, policy="mixed_bfloat16", verdict="different: x", numbers=(NEAR, FAR))
    names = [(b, p) for p in ("float32", "mixed_bfloat16") for b in ("torch", "tensorflow")]
    runs = [Run(backend=b, policy=p, status="ok") for b, p in names]
    result = Result("net", tuple(runs), pairs=(SAME, apart))
    said = decided(pair_views(result))
    assert said.startswith("Farthest apart: torch and tensorflow, mixed_bfloat16, update of one")
    text = page(result)
    assert said in text
    for word in ("fc1.weight, step 3", "fc2.bias, step 1", "an error of 1e-3", "beyond noise"):
        assert word in text
    agreeing = page(replace(result, pairs=(SAME,)))
    assert "Nearest to its tolerance: torch and tensorflow, float32, gradient" in agreeing
    assert "fc2.bias" not in agreeing


def test_what_would_have_shown_reads_as_a_sentence() -> None:
    deaf = Number("gradient", 0.1, 0.5, blind=2)
    half = Number("update", 1e-5, 1e-4, shows=1e-3, blind=1)
    assert power_words(replace(SAME, numbers=(deaf, half))) == (
        "no error in one tensor's gradient, not even twice the value; "
        "an error of 1e-3 in one tensor's update (in 1 tensor not even twice the value)"
    )
