"""Small networks of transformers, and a batch for each: (class, configuration, settings, batch)."""

from __future__ import annotations

import numpy as np

_ROWS = np.random.RandomState(0)
IDS = _ROWS.randint(5, 60, (3, 7)).astype(np.int64)
MASK = np.array([[1] * 5 + [0] * 2, [1] * 7, [1] * 3 + [0] * 4], np.int64)
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    **_STILL,
}
GPT2 = {
    "vocab_size": 60,
    "n_positions": 40,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 1,
}
_DISTILBERT = {
    "vocab_size": 60,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 32,
    "max_position_embeddings": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "seq_classif_dropout": 0.0,
    "qa_dropout": 0.0,
}
_XLNET = {
    "vocab_size": 60,
    "d_model": 16,
    "n_layer": 2,
    "n_head": 2,
    "d_inner": 32,
    "dropout": 0.0,
    "summary_last_dropout": 0.0,
}
_T5 = {
    "vocab_size": 60,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
_BART = {
    "vocab_size": 60,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 40,
    "dropout": 0.0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "bos_token_id": 0,
    "decoder_start_token_id": 2,
}
CLIP_TEXT = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
    "projection_dim": 12,
    "eos_token_id": 59,
    "bos_token_id": 0,
    "pad_token_id": 1,
}
_CLIP_VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
    "projection_dim": 12,
}
_VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 8,
    **_STILL,
}
_SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [2, 1],
    "num_heads": [2, 2],
    "window_size": 4,
    "drop_path_rate": 0.0,
    **_STILL,
}
_WAV2VEC2 = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": (8, 8),
    "conv_stride": (4, 2),
    "conv_kernel": (8, 3),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "final_dropout": 0.0,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
    "mask_time_prob": 0.0,
}
_OPT = {
    "vocab_size": 60,
    "hidden_size": 16,
    "word_embed_proj_dim": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 32,
    "max_position_embeddings": 40,
    "dropout": 0.0,
}
_LLAMA = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
_WORDS = {"input_ids": IDS, "attention_mask": MASK}
_KINDS = np.array([0, 2, 1])
_NEXT = np.where(MASK == 1, IDS, -100)
_PLACES = {"start_positions": np.array([0, 1, 2]), "end_positions": np.array([1, 3, 2])}
_ENDED = IDS.copy()
_ENDED[:, -1] = 59
_PIXELS = {"pixel_values": _ROWS.randn(3, 3, 16, 16).astype(np.float32)}
_LARGE = {"pixel_values": _ROWS.randn(2, 3, 32, 32).astype(np.float32)}
_SOUND = {"input_values": _ROWS.randn(2, 400).astype(np.float32)}
_CHOICES = {
    "input_ids": np.stack([IDS, IDS[::-1]], 1),
    "attention_mask": np.stack([MASK, MASK[::-1]], 1),
    "labels": np.array([0, 1, 1]),
}
_FAMILIES = {
    "Bert": BERT,
    "Roberta": {**BERT, "pad_token_id": 1},
    "DistilBert": _DISTILBERT,
    "Albert": {**BERT, "embedding_size": 8, "classifier_dropout_prob": 0.0},
    "Electra": {**BERT, "embedding_size": 16},
    "Camembert": {**BERT, "pad_token_id": 1},
    "XLMRoberta": {**BERT, "pad_token_id": 1},
    "Deberta": BERT,
    "DebertaV2": {**BERT, "position_biased_input": True},
    "XLNet": _XLNET,
    "MPNet": BERT,
}


def _of_family(name, settings):
    config = f"{name}Config"
    places = "ForQuestionAnsweringSimple" if name == "XLNet" else "ForQuestionAnswering"
    yield f"{name}Model", config, settings, _WORDS
    three = {**settings, "num_labels": 3}
    yield f"{name}ForSequenceClassification", config, three, {**_WORDS, "labels": _KINDS}
    each = np.where(MASK == 1, IDS % 3, -100)
    yield f"{name}ForTokenClassification", config, three, {**_WORDS, "labels": each}
    yield f"{name}{places}", config, settings, {**_WORDS, **_PLACES}
    if name == "XLNet":
        yield "XLNetLMHeadModel", config, settings, {**_WORDS, "labels": IDS}
    else:
        yield f"{name}ForMaskedLM", config, settings, {**_WORDS, "labels": _NEXT}
    if name in ("Bert", "DistilBert", "Albert", "Electra", "Roberta", "XLMRoberta"):
        yield f"{name}ForMultipleChoice", config, settings, _CHOICES


def models():
    """Yield all of them."""
    yield from _of_family("Bert", BERT)
    spoken = {**_WORDS, "labels": _NEXT}
    yield "GPT2LMHeadModel", "GPT2Config", GPT2, spoken
    yield "GPT2Model", "GPT2Config", GPT2, _WORDS
    kinds = {**_WORDS, "labels": _KINDS}
    yield "GPT2ForSequenceClassification", "GPT2Config", {**GPT2, "num_labels": 3}, kinds
    yield "T5ForConditionalGeneration", "T5Config", _T5, spoken
    yield "T5EncoderModel", "T5Config", _T5, _WORDS
    yield "BartForConditionalGeneration", "BartConfig", _BART, spoken
    yield "BartModel", "BartConfig", _BART, _WORDS
    words = {"input_ids": _ENDED, "attention_mask": MASK}
    yield "CLIPTextModel", "CLIPTextConfig", CLIP_TEXT, words
    yield "CLIPTextModelWithProjection", "CLIPTextConfig", CLIP_TEXT, words
    yield "CLIPVisionModel", "CLIPVisionConfig", _CLIP_VISION, _PIXELS
    yield "CLIPVisionModelWithProjection", "CLIPVisionConfig", _CLIP_VISION, _PIXELS
    both = {"text_config": CLIP_TEXT, "vision_config": _CLIP_VISION, "projection_dim": 12}
    yield "CLIPModel", "CLIPConfig", both, {**words, **_PIXELS, "return_loss": True}
    yield "ViTModel", "ViTConfig", _VIT, _PIXELS
    seen = {**_PIXELS, "labels": _KINDS}
    yield "ViTForImageClassification", "ViTConfig", {**_VIT, "num_labels": 3}, seen
    yield (
        "BertForPreTraining",
        "BertConfig",
        BERT,
        {
            **spoken,
            "next_sentence_label": np.array([0, 1, 1]),
        },
    )
    following = {**_WORDS, "labels": np.array([0, 1, 1])}
    yield "BertForNextSentencePrediction", "BertConfig", BERT, following
    yield "BertLMHeadModel", "BertConfig", {**BERT, "is_decoder": True}, spoken
    replaced = {**_WORDS, "labels": (IDS % 2).astype(np.int64)}
    yield "ElectraForPreTraining", "ElectraConfig", {**BERT, "embedding_size": 8}, replaced
    yield "T5Model", "T5Config", _T5, {**_WORDS, "decoder_input_ids": IDS[:, :4]}
    yield (
        "GPT2ForTokenClassification",
        "GPT2Config",
        {**GPT2, "num_labels": 3},
        {
            **_WORDS,
            "labels": IDS % 3,
        },
    )
    yield "OPTModel", "OPTConfig", _OPT, _WORDS
    yield "OPTForCausalLM", "OPTConfig", _OPT, spoken
    yield "DeiTModel", "DeiTConfig", _VIT, _PIXELS
    yield "DeiTForImageClassification", "DeiTConfig", {**_VIT, "num_labels": 3}, seen
    yield "BeitModel", "BeitConfig", {**_VIT, "drop_path_rate": 0.0}, _PIXELS
    of_beit = {**_VIT, "num_labels": 3, "drop_path_rate": 0.0}
    yield "BeitForImageClassification", "BeitConfig", of_beit, seen
    yield "SwinModel", "SwinConfig", _SWIN, _LARGE
    yield (
        "SwinForImageClassification",
        "SwinConfig",
        {**_SWIN, "num_labels": 3},
        {
            **_LARGE,
            "labels": np.array([0, 2]),
        },
    )
    yield "Wav2Vec2Model", "Wav2Vec2Config", _WAV2VEC2, _SOUND
    yield (
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        {**_WAV2VEC2, "num_labels": 3},
        {
            **_SOUND,
            "labels": np.array([0, 2]),
        },
    )
    yield "LlamaModel", "LlamaConfig", _LLAMA, _WORDS
    yield "LlamaForCausalLM", "LlamaConfig", _LLAMA, spoken
    yield "AutoModel", "BertConfig", BERT, _WORDS
    yield "AutoModelForSequenceClassification", "BertConfig", {**BERT, "num_labels": 3}, kinds
    yield "AutoModelForCausalLM", "GPT2Config", GPT2, spoken
    for name, settings in _FAMILIES.items():
        if name != "Bert":
            yield from _of_family(name, settings)
