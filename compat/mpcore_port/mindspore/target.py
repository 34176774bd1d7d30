"""The target itself: its passes, and the rows for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.errors import check_choice
from mpcore_port.errors import PortError
from mpcore_port.facts import Api
from mpcore_port.messages import PackageMessages
from mpcore_port.mindspore.judging import JUDGE
from mpcore_port.mindspore.loop.rule import LoopRule
from mpcore_port.mindspore.rules.changes.data_attribute import DataRule, KeptDataRule
from mpcore_port.mindspore.rules.changes.in_place import AloneRule, BehindRule
from mpcore_port.mindspore.rules.changes.in_place_functions import (
    InPlaceFunctionRule,
    OutRule,
    OutValueRule,
)
from mpcore_port.mindspore.rules.changes.just_made import JustMadeRule
from mpcore_port.mindspore.rules.changes.layers_in_loops import LoopedLayerRule
from mpcore_port.mindspore.rules.changes.layers_in_place import LayerInPlaceRule
from mpcore_port.mindspore.rules.changes.resized import MadeToSizeRule, ResizedRule
from mpcore_port.mindspore.rules.changes.rows import RowRule
from mpcore_port.mindspore.rules.changes.shared import SharedRule
from mpcore_port.mindspore.rules.changes.wholly import WhollyRule
from mpcore_port.mindspore.rules.losses.accelerated import AcceleratedRule
from mpcore_port.mindspore.rules.losses.annotated import AnnotatedRule
from mpcore_port.mindspore.rules.losses.firsts import FirstRule
from mpcore_port.mindspore.rules.losses.penalties import PenaltyRule
from mpcore_port.mindspore.rules.losses.raising import RaisingRule
from mpcore_port.mindspore.rules.losses.released import ReleasedRule
from mpcore_port.mindspore.rules.losses.scaled_names import ScaledNameRule
from mpcore_port.mindspore.rules.losses.switches import SwitchRule
from mpcore_port.mindspore.rules.losses.training import TrainingRule
from mpcore_port.mindspore.rules.losses.watching import WatchingRule
from mpcore_port.mindspore.rules.names.accelerator import AcceleratorRule
from mpcore_port.mindspore.rules.names.aliases import AliasRule
from mpcore_port.mindspore.rules.names.annotation_names import AnnotationRule
from mpcore_port.mindspore.rules.names.api import CallRule, ImportRule, NameRule, StatementRule
from mpcore_port.mindspore.rules.names.bound_amp import BoundAmpRule
from mpcore_port.mindspore.rules.names.by_word import WordRule
from mpcore_port.mindspore.rules.names.class_names import ClassNameRule
from mpcore_port.mindspore.rules.names.evaluated import EvaluatedRule
from mpcore_port.mindspore.rules.names.flags import DeviceFlagRule, DeviceOfRule, MetaRule
from mpcore_port.mindspore.rules.names.forward_words import ForwardWordRule
from mpcore_port.mindspore.rules.names.kinds import KindRule, SameKindRule
from mpcore_port.mindspore.rules.names.native import NativeRule
from mpcore_port.mindspore.rules.names.of_python import ForkRule, PythonRule
from mpcore_port.mindspore.rules.names.old_order import OldOrderRule
from mpcore_port.mindspore.rules.names.only_shown import GuardRule
from mpcore_port.mindspore.rules.names.partials import PartialRule
from mpcore_port.mindspore.rules.names.scripted import ScriptedRule
from mpcore_port.mindspore.rules.names.shown import ShownRule
from mpcore_port.mindspore.rules.names.switches_in_branches import BranchSwitchRule
from mpcore_port.mindspore.rules.names.words import WordsRule
from mpcore_port.mindspore.rules.networks.at_birth import AtBirthRule
from mpcore_port.mindspore.rules.networks.exact_types import ExactTypeRule
from mpcore_port.mindspore.rules.networks.getters import GetterRule
from mpcore_port.mindspore.rules.networks.mode import ModeRule
from mpcore_port.mindspore.rules.networks.overridden import OverriddenRule
from mpcore_port.mindspore.rules.networks.own_states import OwnStateRule
from mpcore_port.mindspore.rules.networks.parents import ParentRule
from mpcore_port.mindspore.rules.networks.passes_afar import PassAfarRule
from mpcore_port.mindspore.rules.networks.replaced import ReplacedRule
from mpcore_port.mindspore.rules.networks.runs import RunsRule
from mpcore_port.mindspore.rules.networks.saved import LoadedRule, PutBackRule
from mpcore_port.mindspore.rules.networks.sequential import SequentialRule
from mpcore_port.mindspore.rules.networks.settings import SettingRule
from mpcore_port.mindspore.rules.networks.settings_read import SettingReadRule
from mpcore_port.mindspore.rules.networks.starts import StartRule
from mpcore_port.mindspore.rules.networks.taken import TakenRule
from mpcore_port.mindspore.rules.optimizers.groups import GroupRule
from mpcore_port.mindspore.rules.optimizers.own_optimizers import OwnStepRule
from mpcore_port.mindspore.rules.optimizers.spent import SpentRule
from mpcore_port.mindspore.rules.optimizers.wrappers import WrapperRule
from mpcore_port.mindspore.rules.tidy import TidyRule
from mpcore_port.mindspore.rules.values.apart import ApartRule
from mpcore_port.mindspore.rules.values.attributes import AttributeRule, RangeRule
from mpcore_port.mindspore.rules.values.bytes_of import BytesRule
from mpcore_port.mindspore.rules.values.complex_parts import ComplexPartRule
from mpcore_port.mindspore.rules.values.draws import DrawRule
from mpcore_port.mindspore.rules.values.dtype_texts import DtypeTextRule
from mpcore_port.mindspore.rules.values.indexes import EmptyRule, IndexRule
from mpcore_port.mindspore.rules.values.joined import JoinedRule
from mpcore_port.mindspore.rules.values.kept_names import AliasOfDataRule
from mpcore_port.mindspore.rules.values.leaves import LeafRule
from mpcore_port.mindspore.rules.values.masters import MastersRule
from mpcore_port.mindspore.rules.values.numbers import GivenNumberRule, NumberRule
from mpcore_port.mindspore.rules.values.repeats import RepeatRule
from mpcore_port.mindspore.rules.values.strides import StrideRule
from mpcore_port.mindspore.rules.values.tensors import (
    ForwardRule,
    GradRule,
    MethodRule,
)
from mpcore_port.mindspore.rules.values.wanted import WantedRule
from mpcore_port.mindspore.rules.values.whole import WholeRule
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
        PassAfarRule(),
        MethodRule(),
        ModeRule(),
        AtBirthRule(),
        AttributeRule(),
        WantedRule(),
        RangeRule(),
        GradRule(),
        DataRule(),
        KeptDataRule(),
        AliasOfDataRule(),
        PutBackRule(),
        LoadedRule(),
        SequentialRule(),
        SettingRule(),
        SettingReadRule(),
        ShownRule(),
        StartRule(),
        GroupRule(),
        PackageMessages(),
        DeviceFlagRule(),
        DeviceOfRule(),
        MetaRule(),
        ForwardRule(),
        RunsRule(),
        GetterRule(),
        OverriddenRule(),
        OwnStateRule(),
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
        DrawRule(),
        ExactTypeRule(),
        EmptyRule(),
        FirstRule(),
        GivenNumberRule(),
        IndexRule(),
        WhollyRule(),
        JoinedRule(),
        KindRule(),
        LeafRule(),
        MastersRule(),
        NumberRule(),
        RepeatRule(),
        ReplacedRule(),
        RowRule(),
        SameKindRule(),
        ComplexPartRule(),
        StrideRule(),
        TakenRule(),
        BytesRule(),
        DtypeTextRule(),
        WholeRule(),
    ]
    return [
        [
            AnnotatedRule(),
            InPlaceFunctionRule(),
            OutRule(),
            OutValueRule(),
            BoundAmpRule(),
            EvaluatedRule(),
            GuardRule(),
            MadeToSizeRule(),
            OwnStepRule(),
            ForkRule(),
            PythonRule(),
            WatchingRule(),
            WordRule(),
            ScriptedRule(),
            SpentRule(),
            WordsRule(),
        ],
        [ReleasedRule(), JustMadeRule(), OldOrderRule(), ResizedRule(), ForwardWordRule()],
        [
            BranchSwitchRule(),  # before loops are written anew
            SwitchRule(),
            LayerInPlaceRule(),
            LoopedLayerRule(),
            PenaltyRule(),
            RaisingRule(),
            ScaledNameRule(),
            SharedRule(),
        ],
        shapes,
        [TrainingRule(), LoopRule()],
        names,
        [NativeRule(), TidyRule()],
    ]


_OF_MINDONE = "needs mindone 0.5.0; not run on Ascend"


def _apis() -> list[Api]:
    rows = [row for file in FILES for row in table(file).values()]
    return [
        Api(
            row.name,
            row.to or row.expr or row.bare,
            row.kind,  # type: ignore[arg-type]  # one of the four
            row.refuse_all or (_OF_MINDONE if row.doubt else row.reason),
            row.effect,
        )
        for row in rows
    ]


def counts() -> dict[str, dict[str, int]]:
    """Return how many names of torch each table maps and refuses, for the docs."""
    found: dict[str, dict[str, int]] = {}
    for file in FILES:
        kinds = [row.kind for row in table(file).values()]
        found[file] = {
            kind: kinds.count(kind) for kind in ("exact", "changed", "unproven", "refused")
        }
    return found


TARGET = Target(
    name="mindspore",
    title="MindSpore 2.10",
    passes=_passes,
    apis=_apis,
    judge=JUDGE,
    not_run="Ascend devices and several processes were not run; MindSpore's CPU build was",
)
