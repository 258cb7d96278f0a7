"""Tiny randomly initialised models of every family, with inputs, and windows that matter."""

import torch
import transformers as t

from diffwindow.models.window_adapter import WindowAdapter

VOCABULARY = 40
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}


def bert():
    return t.BertForMaskedLM(t.BertConfig(**SIZES))


def bert_decoder():
    return t.BertLMHeadModel(t.BertConfig(**SIZES, is_decoder=True, add_cross_attention=True))


def roberta():
    return t.RobertaForMaskedLM(t.RobertaConfig(**SIZES))


def electra():
    return t.ElectraForMaskedLM(t.ElectraConfig(**SIZES, embedding_size=8))


def distilbert():
    config = t.DistilBertConfig(
        vocab_size=VOCABULARY, dim=16, hidden_dim=24, n_layers=2, n_heads=4, max_position_embeddings=64
    )
    return t.DistilBertForMaskedLM(config)


def gpt2():
    config = t.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    return t.GPT2LMHeadModel(config)


def gpt2_cross():
    config = t.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=64, add_cross_attention=True
    )
    return t.GPT2LMHeadModel(config)


def llama():
    return t.LlamaForCausalLM(t.LlamaConfig(**SIZES, num_key_value_heads=2))


def mistral(sliding_window=None):
    return t.MistralForCausalLM(
        t.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=sliding_window)
    )


def qwen2():
    return t.Qwen2ForCausalLM(t.Qwen2Config(**SIZES, num_key_value_heads=2))


def qwen3():
    return t.Qwen3ForCausalLM(t.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=6))


def deepseek():
    """A model whose values are narrower than its queries and keys."""
    config = t.DeepseekV3Config(
        **SIZES, num_key_value_heads=4, moe_intermediate_size=8, n_routed_experts=4, n_group=2, topk_group=1,
        num_experts_per_tok=2, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=6,
        v_head_dim=5, first_k_dense_replace=2,
    )  # fmt: skip
    return t.DeepseekV3ForCausalLM(config)


def gemma2():
    return t.Gemma2ForCausalLM(t.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=4))


def gpt_oss():
    return t.GptOssForCausalLM(
        t.GptOssConfig(**SIZES, num_key_value_heads=2, head_dim=4, num_local_experts=2)
    )


def mamba():
    return t.MambaForCausalLM(t.MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1))


def bart():
    return t.BartForConditionalGeneration(t.BartConfig(**BART))


def marian():
    return t.MarianMTModel(t.MarianConfig(**BART))


def m2m100():
    return t.M2M100ForConditionalGeneration(t.M2M100Config(**BART))


def t5():
    config = t.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=4, pad_token_id=0,
        eos_token_id=2, decoder_start_token_id=1, relative_attention_num_buckets=8,
    )  # fmt: skip
    return t.T5ForConditionalGeneration(config)


def vit():
    config = t.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, image_size=12,
        patch_size=3,
    )  # fmt: skip
    return t.ViTModel(config)


# what each family is built by, and the roles that it has
MODELS = {
    "bert": (bert, ("Enc",)),
    "bert_decoder": (bert_decoder, ("Dec", "Cr")),
    "roberta": (roberta, ("Enc",)),
    "electra": (electra, ("Enc",)),
    "distilbert": (distilbert, ("Enc",)),
    "gpt2": (gpt2, ("Dec",)),
    "gpt2_cross": (gpt2_cross, ("Dec", "Cr")),
    "llama": (llama, ("Dec",)),
    "mistral": (mistral, ("Dec",)),
    "qwen2": (qwen2, ("Dec",)),
    "qwen3": (qwen3, ("Dec",)),
    "deepseek": (deepseek, ("Dec",)),
    "bart": (bart, ("Enc", "Cr", "Dec")),
    "marian": (marian, ("Enc", "Cr", "Dec")),
    "m2m100": (m2m100, ("Enc", "Cr", "Dec")),
    "t5": (t5, ("Enc", "Cr", "Dec")),
    "vit": (vit, ("Enc",)),
}
ENCODER_DECODERS = ("bart", "marian", "m2m100", "t5")


def model_of(name, seed=0):
    """A model in evaluation mode whose attention is not uniform: weights are large, as T5's are anyway."""
    torch.manual_seed(seed)
    model = MODELS[name][0]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2 and name != "t5":
                parameter.mul_(4.0)
    return model


def tokens(batch=3, length=9, seed=0):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def inputs_of(name):
    """Keyword arguments of a forward pass."""
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))}
    inputs = {"input_ids": tokens()}
    if name in ENCODER_DECODERS:
        inputs["decoder_input_ids"] = tokens(length=7, seed=1)
    if name in ("bert_decoder", "gpt2_cross"):
        inputs["encoder_hidden_states"] = torch.randn(3, 11, 16, generator=torch.Generator().manual_seed(0))
    return inputs


def outputs_of(name, model, **inputs):
    result = model(**(inputs_of(name) | inputs))
    return result.last_hidden_state if name == "vit" else result.logits


def plan_of(name, kind="AW"):
    return "-".join(f"{role}({kind})@all" for role in MODELS[name][1])


def open_windows(model, seed=0):
    """Give every window parameters that matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for window in (module for module in model.modules() if isinstance(module, WindowAdapter)):
            for name, parameter in window.named_parameters():
                scale = 0.5 if name == "gate" else 0.6
                parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter) * scale)
    return model
