"""Words of other libraries as policies: each is said back, or refused with the choices."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpcore as mp
from mpcore import Policy, PolicyError, Rule
from mpcore.interop.policy import import_policy
from mpcore.numerics.dtypes import ALIASES, FORMATS
from mpcore.policy.policy import PRESETS
from mpcore.policy.words import WORDS, translate
from mpcore_numpy import SGD, Model

DTYPES = [word for word in (*ALIASES, *FORMATS) if ALIASES.get(word, word) != "float64"]
CASES = st.sampled_from([str.lower, str.upper, str.title])


@given(st.sampled_from([*WORDS, *DTYPES]), CASES)
def test_every_word_parses_and_is_said_back_as_the_policy_it_became(word: str, case) -> None:
    policy = Policy.parse(case(word))
    said = str(policy)
    assert Policy.parse(said) == policy
    assert said.partition(",")[0] in PRESETS
    assert translate(said) == said  # what is said back is our own word


@given(st.sampled_from([*WORDS, *DTYPES]))
def test_words_take_fields_and_rules_as_names_do(word: str) -> None:
    plain = Policy.parse(word)
    changed = Policy.parse(f"{word}, simulation=refuse; full *.head")
    assert changed.simulation == "refuse"
    assert changed.rules == (Rule("full", "path", "*.head"),)
    assert (changed.compute, changed.by, changed.defaults) == (
        plain.compute,
        plain.by,
        plain.defaults,
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("bf16", "mixed_bfloat16"),
        ("fp16", "mixed_float16"),
        ("half", "mixed_float16"),
        ("float16", "mixed_float16"),
        ("fp32", "float32"),
        ("no", "float32"),
        ("32-true", "float32"),
        ("16-mixed", "torch:autocast"),
        ("bf16-mixed", "torch:autocast_bfloat16"),
        ("16-true", "torch:half, inputs=cast"),
        ("bf16-true", "torch:half, param=bfloat16, compute=bfloat16, inputs=cast"),
        ("bf16; full *.head", "mixed_bfloat16; full path=*.head"),
        ("p=f32,c=bf16,o=f32", "compute=bfloat16, inputs=cast; default lower layer=*"),
        ("params=float32,compute=float32,output=float32", "float32"),
        (
            "params=float16, compute=float16, output=half; full head",
            "param=float16, compute=float16, output=float16, by=model, loss_scale=none, "
            "inputs=cast; default lower layer=*; full path=head",
        ),
        ("compute=bf16, output=full", None),
    ],
)
def test_word_becomes(word: str, said: str | None) -> None:
    if said is None:  # ours, not jmp's: "full" is no dtype
        with pytest.raises(PolicyError, match="`output` must be one of"):
            Policy.parse(word)
        return
    assert str(Policy.parse(word)) == said


@pytest.mark.parametrize("name", PRESETS)
def test_names_of_policies_keep_their_meaning(name: str) -> None:
    assert translate(name) == name
    assert Policy.parse(name) is not None
    assert Policy.parse(name) == PRESETS[name]


@pytest.mark.parametrize("text", ["p=f32,c=f16,o=f32", "params=bf16,compute=bf16,output=bf16"])
def test_jmp_texts_are_read_as_import_policy_reads_them(text: str) -> None:
    assert Policy.parse(text) == import_policy(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("O1", r"another thing in each framework: choose from 'apex:O1', 'mindspore:O1', 'paddle"),
        ("mixed; full head", "choose from 'mixed_float16', 'mixed_bfloat16'"),
        ("fp8", "`policy` 'fp8' cannot be honoured: no backend computes in 8 bits"),
        ("64-true", "nothing here is wider than 'float32'"),
        ("double", "nothing here is wider than 'float32'"),
        ("params=bf16,compute=f32", r"`policy` cannot say parameters in bfloat16 \(they are float"),
        ("p=f32,c=bf16,by=op", "must look like 'params=float32,compute=float16"),
        ("p=f32,c=int8", "`compute` must be one of"),
        ("mixed_fp16", "did you mean 'mixed_float16'"),
    ],
)
def test_unclear_words_are_refused_with_the_choices(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Policy.parse(text)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float16, "mixed_float16"),
        (np.dtype("float32"), "float32"),
        (ml_dtypes.bfloat16, "mixed_bfloat16"),
        (SimpleNamespace(name="bfloat16"), "mixed_bfloat16"),  # tf.bfloat16
    ],
)
def test_dtype_objects_are_policies(dtype: object, name: str) -> None:
    assert Policy.of(dtype) == PRESETS[name]


def test_policies_and_texts_are_policies() -> None:
    policy = PRESETS["mixed_float16"].full("head")
    assert Policy.of(policy) is policy
    assert Policy.of("fp16; full head") == policy
    for wrong in (5, None, np.int32, object()):
        with pytest.raises(PolicyError, match=r"mp\.import_policy reads"):
            Policy.of(wrong)


def test_prepare_takes_a_dtype() -> None:
    model = Model({"fc": "linear"}, {"fc.weight": np.ones(2, "f4")})
    amp = mp.prepare(model, SGD(model.params, 0.0), ml_dtypes.bfloat16)
    assert str(amp.policy) == "mixed_bfloat16"


def test_dtype_words_in_fields_and_rules() -> None:
    policy = Policy.parse("compute=bf16, output=bf16; fp32 head; bf16>f32 layer=linear")
    assert [str(rule) for rule in policy.rules] == [
        "float32 path=head",
        "bfloat16>float32 layer=linear",
    ]
    assert Policy.from_dict({"compute": "bf16"}) == PRESETS["mixed_bfloat16"]
    text = "param=bf16, compute=bf16, by=model, master=copy, optimizer_state=bf16"
    assert Policy.parse(text).optimizer_state == "bfloat16"
