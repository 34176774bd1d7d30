"""The target itself: its passes, and the rows for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.errors import check_choice
from mpcore_port.errors import PortError
from mpcore_port.facts import Api
from mpcore_port.messages import PackageMessages
from mpcore_port.mindspore.judging import JUDGE
from mpcore_port.mindspore.loop.rule import LoopRule
from mpcore_port.mindspore.rules.accelerated import AcceleratedRule
from mpcore_port.mindspore.rules.accelerator import AcceleratorRule
from mpcore_port.mindspore.rules.aliases import AliasRule
from mpcore_port.mindspore.rules.annotated import AnnotatedRule
from mpcore_port.mindspore.rules.annotation_names import AnnotationRule
from mpcore_port.mindspore.rules.apart import ApartRule
from mpcore_port.mindspore.rules.api import CallRule, ImportRule, NameRule, StatementRule
from mpcore_port.mindspore.rules.attributes import AttributeRule, RangeRule
from mpcore_port.mindspore.rules.bound_amp import BoundAmpRule
from mpcore_port.mindspore.rules.by_word import WordRule
from mpcore_port.mindspore.rules.class_names import ClassNameRule
from mpcore_port.mindspore.rules.data_attribute import DataRule, KeptDataRule
from mpcore_port.mindspore.rules.firsts import FirstRule
from mpcore_port.mindspore.rules.flags import DeviceFlagRule, DeviceOfRule
from mpcore_port.mindspore.rules.forward_words import ForwardWordRule
from mpcore_port.mindspore.rules.getters import GetterRule
from mpcore_port.mindspore.rules.groups import GroupRule
from mpcore_port.mindspore.rules.in_place import AloneRule, BehindRule
from mpcore_port.mindspore.rules.in_place_functions import InPlaceFunctionRule
from mpcore_port.mindspore.rules.indexes import EmptyRule, IndexRule
from mpcore_port.mindspore.rules.kept_names import AliasOfDataRule
from mpcore_port.mindspore.rules.kinds import KindRule, SameKindRule
from mpcore_port.mindspore.rules.layers_in_place import LayerInPlaceRule
from mpcore_port.mindspore.rules.leaves import LeafRule
from mpcore_port.mindspore.rules.mode import ModeRule
from mpcore_port.mindspore.rules.native import NativeRule
from mpcore_port.mindspore.rules.numbers import GivenNumberRule, NumberRule
from mpcore_port.mindspore.rules.of_python import PythonRule
from mpcore_port.mindspore.rules.old_order import OldOrderRule
from mpcore_port.mindspore.rules.only_shown import GuardRule
from mpcore_port.mindspore.rules.own_optimizers import OwnStepRule
from mpcore_port.mindspore.rules.parents import ParentRule
from mpcore_port.mindspore.rules.partials import PartialRule
from mpcore_port.mindspore.rules.penalties import PenaltyRule
from mpcore_port.mindspore.rules.raising import RaisingRule
from mpcore_port.mindspore.rules.released import ReleasedRule
from mpcore_port.mindspore.rules.repeats import RepeatRule
from mpcore_port.mindspore.rules.resized import ResizedRule
from mpcore_port.mindspore.rules.rows import RowRule
from mpcore_port.mindspore.rules.saved import PutBackRule
from mpcore_port.mindspore.rules.sequential import SequentialRule
from mpcore_port.mindspore.rules.settings import SettingRule
from mpcore_port.mindspore.rules.shared import SharedRule
from mpcore_port.mindspore.rules.shown import ShownRule
from mpcore_port.mindspore.rules.strides import StrideRule
from mpcore_port.mindspore.rules.switches import SwitchRule
from mpcore_port.mindspore.rules.taken import TakenRule
from mpcore_port.mindspore.rules.tensors import (
    ForwardRule,
    GradRule,
    MethodRule,
)
from mpcore_port.mindspore.rules.tidy import TidyRule
from mpcore_port.mindspore.rules.training import TrainingRule
from mpcore_port.mindspore.rules.wanted import WantedRule
from mpcore_port.mindspore.rules.watching import WatchingRule
from mpcore_port.mindspore.rules.whole import WholeRule
from mpcore_port.mindspore.rules.words import WordsRule
from mpcore_port.mindspore.rules.wrappers import WrapperRule
from mpcore_port.mindspore.tables import FILES, table
from mpcore_port.targets import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore_port.rule import Rule
    from mpcore_port.targets import Options

__all__ = ["TARGET", "counts"]


def _passes(options: Options) -> Sequence[Sequence[Rule]]:
    check_choice("--data", options.data, ("iterator", "generator"), PortError)
    names = [
        NameRule(),
        AnnotationRule(),
        CallRule(),
        PartialRule(),
        ParentRule(),
        MethodRule(),
        ModeRule(),
        AttributeRule(),
        WantedRule(),
        RangeRule(),
        GradRule(),
        DataRule(),
        KeptDataRule(),
        AliasOfDataRule(),
        PutBackRule(),
        SequentialRule(),
        SettingRule(),
        ShownRule(),
        GroupRule(),
        PackageMessages(),
        DeviceFlagRule(),
        DeviceOfRule(),
        ForwardRule(),
        GetterRule(),
        WrapperRule(),
        StatementRule(),
        ImportRule(),
    ]
    shapes = [
        AcceleratedRule(),
        AcceleratorRule(),
        AliasRule(),
        AloneRule(),
        ApartRule(),
        BehindRule(),
        ClassNameRule(),
        EmptyRule(),
        FirstRule(),
        GivenNumberRule(),
        IndexRule(),
        KindRule(),
        LeafRule(),
        NumberRule(),
        RepeatRule(),
        RowRule(),
        SameKindRule(),
        StrideRule(),
        TakenRule(),
        WholeRule(),
    ]
    return [
        [
            AnnotatedRule(),
            InPlaceFunctionRule(),
            BoundAmpRule(),
            GuardRule(),
            OwnStepRule(),
            PythonRule(),
            WatchingRule(),
            WordRule(),
            WordsRule(),
        ],
        [ReleasedRule(), OldOrderRule(), ResizedRule(), ForwardWordRule()],
        [LayerInPlaceRule(), PenaltyRule(), RaisingRule(), SharedRule()],
        shapes,
        [TrainingRule(), LoopRule(), SwitchRule()],
        names,
        [NativeRule(), TidyRule()],
    ]


def _apis() -> list[Api]:
    rows = [row for file in FILES for row in table(file).values()]
    return [
        Api(
            row.name,
            row.to or row.expr or row.bare,
            row.kind,  # type: ignore[arg-type]  # one of the three
            row.refuse_all or row.reason,
            row.effect,
        )
        for row in rows
    ]


def counts() -> dict[str, dict[str, int]]:
    """Return how many names of torch each table maps and refuses, for the docs."""
    found: dict[str, dict[str, int]] = {}
    for file in FILES:
        kinds = [row.kind for row in table(file).values()]
        found[file] = {kind: kinds.count(kind) for kind in ("exact", "changed", "refused")}
    return found


TARGET = Target(
    name="mindspore",
    title="MindSpore 2.10",
    passes=_passes,
    apis=_apis,
    judge=JUDGE,
    not_run="Ascend devices and several processes were not run; MindSpore's CPU build was",
)
