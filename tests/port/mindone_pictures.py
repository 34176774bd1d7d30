"""Small networks of diffusers, a batch for each, and schedulers: (class, settings, batch)."""

from __future__ import annotations

import numpy as np

_ROWS = np.random.RandomState(0)
NOISY = _ROWS.randn(2, 4, 8, 8).astype(np.float32)
PICTURES = _ROWS.randn(2, 3, 16, 16).astype(np.float32)
TIMES = np.array([3, 707], np.int64)
WORDS = _ROWS.randn(2, 5, 12).astype(np.float32)
WIDE = {"block_out_channels": (8, 16), "norm_num_groups": 4}
CONDITIONED = {
    **WIDE,
    "layers_per_block": 1,
    "cross_attention_dim": 12,
    "attention_head_dim": 2,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
ALONE = {
    **WIDE,
    "layers_per_block": 1,
    "attention_head_dim": 4,
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
}
AUTOENCODER = {
    **WIDE,
    "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
_TOLD = {"sample": NOISY, "timestep": TIMES, "encoder_hidden_states": WORDS}
NETWORKS = (
    ("UNet2DConditionModel", CONDITIONED, _TOLD),
    ("UNet2DConditionModel", {**CONDITIONED, "use_linear_projection": True}, _TOLD),
    ("UNet2DConditionModel", CONDITIONED, {**_TOLD, "timestep": 41}),
    (
        "UNet2DConditionModel",
        {
            **CONDITIONED,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 4,
            "projection_class_embeddings_input_dim": 6 * 4 + 7,
            "transformer_layers_per_block": 2,
        },
        {
            **_TOLD,
            "added_cond_kwargs": {
                "text_embeds": _ROWS.randn(2, 7).astype(np.float32),
                "time_ids": _ROWS.randint(0, 64, (2, 6)).astype(np.float32),
            },
        },
    ),
    (
        "UNet2DModel",
        {**ALONE, "in_channels": 4, "out_channels": 4, "num_class_embeds": 5},
        {"sample": NOISY, "timestep": TIMES, "class_labels": np.array([1, 4])},
    ),
    ("UNet2DModel", ALONE, {"sample": PICTURES, "timestep": TIMES}),
    ("AutoencoderKL", AUTOENCODER, {"sample": PICTURES}),
)
SCHEDULERS = (
    ("DDPMScheduler", {}),
    ("DDPMScheduler", {"beta_schedule": "squaredcos_cap_v2", "clip_sample": False}),
    ("DDPMScheduler", {"prediction_type": "v_prediction", "beta_schedule": "scaled_linear"}),
    ("DDPMScheduler", {"beta_start": 0.00085, "beta_end": 0.012, "prediction_type": "sample"}),
    ("DDPMScheduler", {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}),
    ("DDPMScheduler", {"beta_schedule": "sigmoid", "variance_type": "fixed_large"}),
    ("DDIMScheduler", {}),
    ("DDIMScheduler", {"set_alpha_to_one": False, "steps_offset": 1, "clip_sample": False}),
    ("DDIMScheduler", {"prediction_type": "v_prediction", "beta_schedule": "scaled_linear"}),
    ("PNDMScheduler", {"skip_prk_steps": True, "beta_schedule": "scaled_linear"}),
    ("PNDMScheduler", {"skip_prk_steps": False, "steps_offset": 1}),
)
