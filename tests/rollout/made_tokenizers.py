"""Small byte-level BPE tokenizers with merges, special tokens and a chat template of one's choice."""

import functools

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_TEXT = (
    "you went up. you went down, left or right. turns remaining, this one included: 12.\n\nsystem user assistant tool"
)

CHATML = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '[INST] ' + message.content + ' [/INST]' }}{% elif message.role == 'assistant' %}"
    "{{ ' ' + message.content + eos_token }}{% else %}{{ raise_exception('no such role: ' + message.role) }}{% endif %}"
    "{% endfor %}"
)
THINKING = (
    "{% for message in messages %}{% set content = message.content %}"
    "{% if message.role == 'assistant' %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if message.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response>' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
APPEND_ONLY = {"chatml": CHATML, "headers": HEADERS, "instruct": INSTRUCT, "thinking": THINKING}


@functools.cache
def made_tokenizer(template: str | None, *, split_special_tokens: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer of about 340 tokens; `split_special_tokens` as `load_tokenizer` sets it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=sorted(alphabet), show_progress=False)
    backend.train_from_iterator([_TEXT] * 3, trainer)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
        split_special_tokens=split_special_tokens,
    )
    tokenizer.chat_template = template
    return tokenizer


def rendered_ids(template: str, messages: list[dict[str, str]], **variables) -> list[int]:
    """transformers' own rendering and encoding of a whole conversation, up to the next reply."""
    reference = made_tokenizer(template, split_special_tokens=False)
    found = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, **variables)
    return list(found["input_ids"] if hasattr(found, "keys") else found)


def conversation(texts: list[str], *, system: str = "", role: str = "user") -> list[dict[str, str]]:
    """Messages of observation, reply, observation, ..."""
    opening = [{"role": "system", "content": system}] if system else []
    names = ["user"] + ["assistant" if place % 2 else role for place in range(1, len(texts))]
    return opening + [{"role": name, "content": text} for name, text in zip(names, texts, strict=True)]
