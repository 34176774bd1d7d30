"""What ported scripts import as ``port``: torch's meaning where MindSpore has none of its own."""

from __future__ import annotations

from mpcore_port_runtime import accelerate as accelerate
from mpcore_port_runtime import albumented as albumented
from mpcore_port_runtime import answers as answers
from mpcore_port_runtime import apex as apex
from mpcore_port_runtime import apex_optimizers as apex_optimizers
from mpcore_port_runtime import attended as attended
from mpcore_port_runtime import augment as augment
from mpcore_port_runtime import beside_arrays as beside_arrays
from mpcore_port_runtime import boxes as boxes
from mpcore_port_runtime import counted as counted
from mpcore_port_runtime import dead_rows as dead_rows
from mpcore_port_runtime import diffusers as diffusers
from mpcore_port_runtime import distributions as distributions
from mpcore_port_runtime import edges as edges
from mpcore_port_runtime import fabric as fabric
from mpcore_port_runtime import far_labels as far_labels
from mpcore_port_runtime import heirs as heirs
from mpcore_port_runtime import held_optimizers as held_optimizers
from mpcore_port_runtime import horovod as horovod
from mpcore_port_runtime import hub as hub
from mpcore_port_runtime import indexing as indexing
from mpcore_port_runtime import initial_numbers as initial_numbers
from mpcore_port_runtime import inits as inits
from mpcore_port_runtime import kaldi as kaldi
from mpcore_port_runtime import kinds_joined as kinds_joined
from mpcore_port_runtime import layer_paddings as layer_paddings
from mpcore_port_runtime import layer_words as layer_words
from mpcore_port_runtime import lightning as lightning
from mpcore_port_runtime import loggers as loggers
from mpcore_port_runtime import lr_scheduler as lr_scheduler
from mpcore_port_runtime import metrics as metrics
from mpcore_port_runtime import named_schedules as named_schedules
from mpcore_port_runtime import networks as networks
from mpcore_port_runtime import of_nothing as of_nothing
from mpcore_port_runtime import others as others
from mpcore_port_runtime import outputs as outputs
from mpcore_port_runtime import own_names as own_names
from mpcore_port_runtime import patterns as patterns
from mpcore_port_runtime import picture_draws as picture_draws
from mpcore_port_runtime import picture_functions as picture_functions
from mpcore_port_runtime import picture_mixes as picture_mixes
from mpcore_port_runtime import picture_sets as picture_sets
from mpcore_port_runtime import pictures as pictures
from mpcore_port_runtime import promoted as promoted
from mpcore_port_runtime import ranger as ranger
from mpcore_port_runtime import scattered as scattered
from mpcore_port_runtime import sign_and_layers as sign_and_layers
from mpcore_port_runtime import sounds as sounds
from mpcore_port_runtime import timm as timm
from mpcore_port_runtime import torch_named as torch_named
from mpcore_port_runtime import torch_nn as torch_nn
from mpcore_port_runtime import transformers as transformers
from mpcore_port_runtime import vision as vision
from mpcore_port_runtime import vision_layers as vision_layers
from mpcore_port_runtime import warps as warps
from mpcore_port_runtime.activations import *  # noqa: F403
from mpcore_port_runtime.attention import *  # noqa: F403
from mpcore_port_runtime.averages import *  # noqa: F403
from mpcore_port_runtime.cells import *  # noqa: F403
from mpcore_port_runtime.class_texts import *  # noqa: F403
from mpcore_port_runtime.comparisons import *  # noqa: F403
from mpcore_port_runtime.compiling import *  # noqa: F403
from mpcore_port_runtime.computed_weights import *  # noqa: F403
from mpcore_port_runtime.contraction import *  # noqa: F403
from mpcore_port_runtime.convolutions import *  # noqa: F403
from mpcore_port_runtime.convolving import *  # noqa: F403
from mpcore_port_runtime.cycles import *  # noqa: F403
from mpcore_port_runtime.data import *  # noqa: F403
from mpcore_port_runtime.device import *  # noqa: F403
from mpcore_port_runtime.dtypes import *  # noqa: F403
from mpcore_port_runtime.files import *  # noqa: F403
from mpcore_port_runtime.flat import *  # noqa: F403
from mpcore_port_runtime.folds import *  # noqa: F403
from mpcore_port_runtime.foreach import *  # noqa: F403
from mpcore_port_runtime.functional import *  # noqa: F403
from mpcore_port_runtime.functions import *  # noqa: F403
from mpcore_port_runtime.getters import *  # noqa: F403
from mpcore_port_runtime.handed_scalers import *  # noqa: F403
from mpcore_port_runtime.holders import *  # noqa: F403
from mpcore_port_runtime.hub import *  # noqa: F403
from mpcore_port_runtime.in_place import *  # noqa: F403
from mpcore_port_runtime.instances import *  # noqa: F403
from mpcore_port_runtime.layer_settings import *  # noqa: F403
from mpcore_port_runtime.layers import *  # noqa: F403
from mpcore_port_runtime.layers_in_place import *  # noqa: F403
from mpcore_port_runtime.linear_algebra import *  # noqa: F403
from mpcore_port_runtime.loading import *  # noqa: F403
from mpcore_port_runtime.loss_bases import *  # noqa: F403
from mpcore_port_runtime.losses import *  # noqa: F403
from mpcore_port_runtime.mixtures import *  # noqa: F403
from mpcore_port_runtime.modules import *  # noqa: F403
from mpcore_port_runtime.moving_averages import *  # noqa: F403
from mpcore_port_runtime.native_scaler import *  # noqa: F403
from mpcore_port_runtime.network_kinds import *  # noqa: F403
from mpcore_port_runtime.norms import *  # noqa: F403
from mpcore_port_runtime.optimizers import *  # noqa: F403
from mpcore_port_runtime.overridden import *  # noqa: F403
from mpcore_port_runtime.own_optimizers import *  # noqa: F403
from mpcore_port_runtime.own_states import *  # noqa: F403
from mpcore_port_runtime.packed import *  # noqa: F403
from mpcore_port_runtime.padding import *  # noqa: F403
from mpcore_port_runtime.parameter_list import *  # noqa: F403
from mpcore_port_runtime.picks import *  # noqa: F403
from mpcore_port_runtime.pools import *  # noqa: F403
from mpcore_port_runtime.process_groups import *  # noqa: F403
from mpcore_port_runtime.profiling import *  # noqa: F403
from mpcore_port_runtime.quantiles import *  # noqa: F403
from mpcore_port_runtime.ragged import *  # noqa: F403
from mpcore_port_runtime.random import *  # noqa: F403
from mpcore_port_runtime.rarer_functions import *  # noqa: F403
from mpcore_port_runtime.rarer_layers import *  # noqa: F403
from mpcore_port_runtime.rates import *  # noqa: F403
from mpcore_port_runtime.recomputing import *  # noqa: F403
from mpcore_port_runtime.reductions import *  # noqa: F403
from mpcore_port_runtime.regions import *  # noqa: F403
from mpcore_port_runtime.resizing import *  # noqa: F403
from mpcore_port_runtime.runs import *  # noqa: F403
from mpcore_port_runtime.samplers import *  # noqa: F403
from mpcore_port_runtime.schedules import *  # noqa: F403
from mpcore_port_runtime.sequences import *  # noqa: F403
from mpcore_port_runtime.settings import *  # noqa: F403
from mpcore_port_runtime.spectra import *  # noqa: F403
from mpcore_port_runtime.starts import *  # noqa: F403
from mpcore_port_runtime.streams import *  # noqa: F403
from mpcore_port_runtime.strides import *  # noqa: F403
from mpcore_port_runtime.switches import *  # noqa: F403
from mpcore_port_runtime.tensorboard import *  # noqa: F403
from mpcore_port_runtime.training import *  # noqa: F403
from mpcore_port_runtime.transformer import *  # noqa: F403
from mpcore_port_runtime.tuples import *  # noqa: F403
from mpcore_port_runtime.typed import *  # noqa: F403
from mpcore_port_runtime.unseen import *  # noqa: F403
from mpcore_port_runtime.wanted import *  # noqa: F403
from mpcore_port_runtime.warmed_averages import *  # noqa: F403
from mpcore_port_runtime.words import *  # noqa: F403

VERSION = 25
"""Of the names that ported files import; docs/reference/port-runtime.md has them."""
