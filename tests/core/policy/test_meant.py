"""Names that differ from a policy's in spelling alone."""

import pytest

import mpcore as mp


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("mixed_BF16", "mixed_bfloat16"),
        ("Mixed_Float16", "mixed_float16"),
        ("mixed_fp16", "mixed_float16"),
        ("model_bf16", "model_bfloat16"),
        ("mixed bf16", "mixed_bfloat16"),
        ("MIXED-BFLOAT16", "mixed_bfloat16"),
        ("apex:o2", "apex:O2"),
        ("APEX:O2", "apex:O2"),
        ("torch:Autocast", "torch:autocast"),
    ],
)
def test_spelling_gets_one_short_line(given, meant):
    with pytest.raises(mp.PolicyError) as caught:
        mp.Policy.of(given)
    assert str(caught.value) == f"`policy` {given!r} is not known; did you mean {meant!r}?"


def test_other_names_get_the_list():
    with pytest.raises(mp.PolicyError, match="must be one of 'float32', 'mixed_float16'"):
        mp.Policy.of("quantized")


@pytest.mark.parametrize("word", ["bf16", "BF16", "Bf16", "bfloat16"])
def test_short_words_are_policies(word):
    assert str(mp.Policy.of(word)) == "mixed_bfloat16"
