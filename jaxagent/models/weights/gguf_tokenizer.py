"""The tokenizer inside a GGUF file: byte-level BPE from its tokens and merges, with its chat template."""

import os
import pathlib
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from jaxagent.errors import UserError

_CONTROL, _USER_DEFINED = 3, 4  # token types
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def save_tokenizer(metadata: dict[str, Any], folder: str | pathlib.Path, *, where: str) -> None:
    """Writes `tokenizer.json`, `tokenizer_config.json` and the chat template as `save_pretrained` does.

    Args:
      metadata: of the file, name -> value.
      folder: exists.
      where: the file's name, for messages.

    Raises:
      UserError: no byte-level BPE tokenizer, or one whose way to split text into words we do not know.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it announces that it found no PyTorch
    from transformers import PreTrainedTokenizerFast

    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UserError(f"{where}: its tokenizer is {kind!r}; byte-level BPE ('gpt2') is the one that can be converted")
    tokens = metadata.get("tokenizer.ggml.tokens")
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        raise UserError(f"{where}: holds no tokens and merges")
    named = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            if not 0 <= number < len(tokens):
                raise UserError(f"{where}: its {name} token {number} is none of its {len(tokens)} tokens")
            named[f"{name}_token"] = tokens[number]
    try:
        backend = _backend(metadata, tokens, merges, where)
    except (ValueError, TypeError) as error:
        raise UserError(f"{where}: its tokens and merges make no tokenizer: {error}") from None
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        model_max_length=int(metadata.get(f"{metadata.get('general.architecture')}.context_length", 1 << 20)),
        chat_template=metadata.get("tokenizer.chat_template"),
        **named,
    ).save_pretrained(str(folder))


def _backend(metadata: dict[str, Any], tokens: list[str], merges: list[str], where: str) -> tokenizers.Tokenizer:
    style = metadata.get("tokenizer.ggml.pre", "default")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=style == "llama-bpe"))
    tokenizer.pre_tokenizer = _pre_tokenizer(style, where)
    tokenizer.decoder = decoders.ByteLevel()
    if style == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    typed = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in typed if k == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t, k in typed if k == _USER_DEFINED])
    return tokenizer


def _pre_tokenizer(style: str, where: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut before the merges: GPT-2's rule, digits apart (SmolLM), or the rules of Llama 3 and Qwen2."""
    if style in ("default", "gpt-2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if style == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    rules = {"llama-bpe": r"\p{N}{1,3}", "qwen2": r"\p{N}"}
    if style not in rules:
        raise UserError(f"{where}: its tokenizer splits text by the rule {style!r}, which is not known")
    split = pre_tokenizers.Split(Regex(_SPLIT.format(digits=rules[style])), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
