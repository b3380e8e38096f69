"""A byte-level chat tokenizer, a network of one or two million weights, and their batches."""

from collections.abc import Sequence
from typing import TypeAlias, assert_never

import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from mindrl.tiny.arithmetic import Question, boxed, careful_answer
from mindrl.tiny.recipe import Family

# Shape letters: B sequences, T token positions.

TinyModel: TypeAlias = (
    Qwen2ForCausalLM | Qwen3MoeForCausalLM | Qwen3_5ForCausalLM | Qwen3_5MoeForCausalLM
)

IGNORED_LABEL = -100
_END_OF_TURN = "<|im_end|>"
_PADDING = "<|endoftext|>"
_SPECIAL_TOKENS = (_PADDING, "<|im_start|>", _END_OF_TURN)
_WHOLE_WORDS = ("system", "user", "assistant", "\\boxed{", ", ")
_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
_VOCABULARY_MULTIPLE = 64
_MAX_POSITIONS = 256
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
_GATED_DELTA_NETS = {
    "head_dim": 32,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per byte, and a few whole words.

    Any text survives encoding and decoding, once its accents are composed.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    backend = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    # What loading by the name of the model family, qwen2, puts there in any case.
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(text, normalized=False) for text in _WHOLE_WORDS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=_END_OF_TURN,
        pad_token=_PADDING,
        model_max_length=_MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def build_model(
    tokenizer: PreTrainedTokenizerFast, seed: int, family: Family = "qwen2", layers: int = 4
) -> TinyModel:
    """Initialise the network from the seed: layers with 4 query heads on 2 key-value heads.

    With experts, every layer has 8, of which each token takes 2; Qwen3.5 has another one for all
    tokens. With gated delta nets, three of four layers have one, with 2 key heads and 4 value
    heads, and the fourth attends.
    """
    torch.manual_seed(seed)
    shared = {
        "vocab_size": -(-len(tokenizer) // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": _MAX_POSITIONS,
        "tie_word_embeddings": False,
        # Four times the usual value: narrow matrices learn a third faster from it here.
        "initializer_range": 0.08,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": torch.float32,
    }
    model: TinyModel
    match family:
        case "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**shared))
        case "qwen3_moe":
            more = {"head_dim": 32, "norm_topk_prob": True}
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shared, **_EXPERTS, **more))
        case "qwen3_5_text":
            model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shared, **_GATED_DELTA_NETS))
        case "qwen3_5_moe_text":
            shared |= {**_GATED_DELTA_NETS, "shared_expert_intermediate_size": 128}
            model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**shared, **_EXPERTS))
        case _:
            assert_never(family)
    model.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def encode_prompt(tokenizer: PreTrainedTokenizerFast, question: Question) -> list[int]:
    """Render one question as token ids, up to the start of its answer."""
    messages = [{"role": "user", "content": question.prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def encode_batch(
    tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question], answers: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels, both int64 [B, T]; only answers are labelled."""
    prompts = [encode_prompt(tokenizer, question) for question in questions]
    tails = [
        [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
        for answer in answers
    ]
    rows = list(zip(prompts, tails, strict=True))
    longest = max(len(prompt) + len(tail) for prompt, tail in rows)
    ids_BT = torch.full((len(rows), longest), tokenizer.pad_token_id)
    labels_BT = torch.full((len(rows), longest), IGNORED_LABEL)
    for row, (prompt, tail) in enumerate(rows):
        end = len(prompt) + len(tail)
        ids_BT[row, :end] = torch.tensor(prompt + tail)
        labels_BT[row, len(prompt) : end] = torch.tensor(tail)
    return ids_BT, labels_BT


def greedy_accuracy(
    model: TinyModel, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question]
) -> float:
    """Share of questions whose greedy answer boxes the right sum."""
    answers = greedy_answers(model, tokenizer, questions)
    pairs = zip(questions, answers, strict=True)
    return sum(boxed(question.sum) in answer for question, answer in pairs) / len(questions)


@torch.no_grad()
def careful_skill(
    model: TinyModel, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question]
) -> float:
    """Share of questions whose careful answer the model can follow to the end.

    Each token must be the likeliest one, save the two that choose the habit:
    the first, and the last plus sign, where careless answers have "=".
    """
    answers = [careful_answer(question) for question in questions]
    ids_BT, labels_BT = encode_batch(tokenizer, questions, answers)
    guesses_BT = model(input_ids=ids_BT).logits[:, :-1].argmax(dim=-1)
    targets_BT = labels_BT[:, 1:]
    plus_BT = targets_BT == tokenizer.convert_tokens_to_ids("+")
    last_plus_BT = plus_BT & (plus_BT.cumsum(dim=-1) == 3)
    judged_BT = targets_BT != IGNORED_LABEL
    judged_BT[:, len(encode_prompt(tokenizer, questions[0])) - 1] = False
    wrong_BT = judged_BT & ~last_plus_BT & (guesses_BT != targets_BT)
    return float((~wrong_BT.any(dim=-1)).float().mean())


@torch.no_grad()
def greedy_answers(
    model: TinyModel, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question]
) -> list[str]:
    """Answer each question with the likeliest tokens, at most 32."""
    prompts_BT = torch.tensor([encode_prompt(tokenizer, question) for question in questions])
    output_BT = model.generate(
        prompts_BT, attention_mask=torch.ones_like(prompts_BT), max_new_tokens=32
    )
    answers_BT = output_BT[:, prompts_BT.shape[1] :]
    return list(tokenizer.batch_decode(answers_BT, skip_special_tokens=True))
