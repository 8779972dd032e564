"""Tokenizers: the tiny one inside the package, or any folder that transformers can read.

The tiny tokenizer knows every byte, so it can encode any text, and every word of the compact renderings as one token.
It is a unigram model (arXiv 1804.10959) over bytes: a word costs 1, a byte 10, so the cheapest reading of a text takes
the words. The same text can be spelled in bytes too: ids are not a function of text, so sampled ids are kept as drawn.

`python -m jaxagent.models.tokenizer` writes the packaged files anew.
"""

import json
import os
import pathlib
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxagent.budgets import budget_line
from jaxagent.envs import frozen_lake, lookup
from jaxagent.envs.intercode_sql import environment as intercode_sql
from jaxagent.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TINY = "tiny"
TINY_SQL = "tiny_sql"  # the same for databases: SQL, the names of generated schemas, the words of their questions
TINY_FOLDER = pathlib.Path(__file__).parent / "tiny_tokenizer"
TINY_SQL_FOLDER = pathlib.Path(__file__).parent / "tiny_sql_tokenizer"
_PACKAGED = {TINY: TINY_FOLDER, TINY_SQL: TINY_SQL_FOLDER}
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
LARGEST_BUDGET_WORD = 64
VOCAB_MULTIPLE = 64  # matrices with a vocabulary axis divide over devices and vector registers
_WORD_SCORE, _BYTE_SCORE = -1.0, -10.0
_COMMON_WORDS = tuple(
    """
the to of and a in is you it that for on are with as not this be at or from have an by one can your will all there
we what was which do if has no cell goal hole ice lake row column turn turns step field value needed answer query word
reply move agent start reached fell nothing unknown seen lost changed between here now next into still more first last
left right up down look
""".split()  # noqa: SIM905 (a list of this length, one word a line, would read worse)
)


def load_tokenizer(name_or_path: str | pathlib.Path) -> "PreTrainedTokenizerFast":
    """A tokenizer from disk: `tiny`, or the folder of one. Runs no code from the folder and never uses the network.

    Text that looks like a special token (`<bos>`, `<|im_end|>`) is encoded as the plain text it is: what an environment
    or a user writes can never become a special id.

    Raises:
      UserError: no such folder, or transformers finds no tokenizer in it.
    """
    # transformers announces on import that it found no PyTorch; the tokenizers need none.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer

    folder = _PACKAGED.get(str(name_or_path)) or pathlib.Path(name_or_path)
    if not folder.is_dir():
        raise UserError(
            f"model.tokenizer: {name_or_path} is neither {TINY!r} nor {TINY_SQL!r} nor a folder with a tokenizer"
        )
    _check_files(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged file can make transformers and tokenizers raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"model.tokenizer: {folder} holds no tokenizer that transformers can read: {reason}") from None
    tokenizer.split_special_tokens = True
    if not tokenizer.encode("text", add_special_tokens=False):  # what transformers makes of no files at all
        raise UserError(f"model.tokenizer: {folder} holds no tokenizer: tokenizer.json or the like is missing")
    return tokenizer


def _check_files(folder: pathlib.Path) -> None:
    """Raises `UserError` where `tokenizer_config.json` is no object or sends transformers to a file elsewhere."""
    path = folder / "tokenizer_config.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"model.tokenizer: {path} cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(stored, dict):
        raise UserError(f"model.tokenizer: {path}: expected a JSON object, found {type(stored).__name__}")
    for name, value in stored.items():
        if name.endswith("_file") and isinstance(value, str) and pathlib.PurePath(value).name != value:
            raise UserError(f"model.tokenizer: {path}: {name}={value!r} lies outside the folder")


def compact_vocabulary() -> tuple[str, ...]:
    """Every text that must be one token: the words and replies of the compact renderings, and the budget words."""
    replies = [f" {reply}\n" for env in (frozen_lake, lookup) for reply in env.compact_replies()]
    words = [word for env in (frozen_lake, lookup) for word in env.compact_words()]
    return tuple(dict.fromkeys([*replies, *words, *_budget_words()]))


def compact_sql_vocabulary() -> tuple[str, ...]:
    """The same for generated databases: a query is a handful of tokens, and a name of the schema is one."""
    replies = [f" {reply}\n" for reply in intercode_sql.compact_replies()]
    return tuple(dict.fromkeys([*replies, *intercode_sql.compact_words(), " DESCRIBE", *_budget_words()]))


def _budget_words() -> list[str]:
    numbers = range(1, LARGEST_BUDGET_WORD + 1)
    return [budget_line(n, 1, announce=kind, wording="words") for kind in ("total", "remaining") for n in numbers]


def build_tiny_tokenizer(path: str | pathlib.Path, vocabulary: tuple[str, ...] | None = None) -> None:
    """Writes a tiny tokenizer to the folder `path` in the layout of `save_pretrained`.

    Ids: the vocabulary (default: `compact_vocabulary()`), common English words up to a multiple of `VOCAB_MULTIPLE`,
    the 256 bytes, the special tokens. The special tokens are not in the unigram model, so no text can be read as one.
    """
    from transformers import PreTrainedTokenizerFast

    byte_symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = list(compact_vocabulary() if vocabulary is None else vocabulary)
    spare = -(len(words) + len(byte_symbols) + len(SPECIAL_TOKENS)) % VOCAB_MULTIPLE
    extra = [word for word in dict.fromkeys(f" {common}" for common in _COMMON_WORDS) if word not in words]
    if len(extra) < spare:
        raise ValueError(f"{spare} common words are needed to fill the vocabulary, {len(extra)} are listed")
    scored = [(_in_byte_symbols(word), _WORD_SCORE) for word in [*words, *extra[:spare]]]
    scored += [(symbol, _BYTE_SCORE) for symbol in byte_symbols]
    tokenizer = tokenizers.Tokenizer(models.Unigram(scored, unk_id=None, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS.values()))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **SPECIAL_TOKENS,
    ).save_pretrained(str(path))


def _in_byte_symbols(text: str) -> str:
    """The text as byte-level symbols, the alphabet of the unigram model."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(symbols for symbols, _ in pieces)


if __name__ == "__main__":
    build_tiny_tokenizer(TINY_FOLDER)
    build_tiny_tokenizer(TINY_SQL_FOLDER, compact_sql_vocabulary())
