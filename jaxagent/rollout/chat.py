"""Text to ids and back, append-only: what stands around each observation, and where a reply ends.

The ids that the sampler drew are kept as they are; text is only ever encoded once, when it is appended.
"""

import dataclasses
import functools
from typing import Any

CACHED_TEXTS = 1 << 16
CACHED_CHARACTERS = 512  # longer texts are not worth remembering


@dataclasses.dataclass(frozen=True)
class LineChat:
    """Turns as lines: an observation, then the reply on the same line, which its newline ends.

    Nothing stands between the observation's last token and the reply: a tiny model reads the budget line from the very
    position that predicts its answer. A reply stops at any token whose text ends in a newline.
    """

    tokenizer: Any  # a `transformers` tokenizer
    stop_ids: tuple[int, ...]
    pad_id: int

    def observation_ids(self, text: str, *, first: bool) -> tuple[int, ...]:
        """Ids to append for an observation (budget line included); the first also opens the transcript."""
        ids = _encode(self.tokenizer, text)
        return (self.tokenizer.bos_token_id, *ids) if first else ids

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a scripted reply, as a policy would have sampled them: one line, its newline included."""
        return _encode(self.tokenizer, f" {' '.join(text.split())}\n")

    def reply_text(self, ids: tuple[int, ...]) -> str:
        """The text of sampled ids, for the environment; undecodable bytes become replacement characters."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def line_chat(tokenizer: Any) -> LineChat:
    """The line chat of a tokenizer: finds every id whose text ends in a newline."""
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))], clean_up_tokenization_spaces=False)
    stop_ids = tuple(i for i, text in enumerate(texts) if text.endswith("\n"))
    return LineChat(tokenizer=tokenizer, stop_ids=stop_ids, pad_id=tokenizer.pad_token_id)


def _encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    if len(text) <= CACHED_CHARACTERS:
        return _encode_cached(tokenizer, text)
    return tuple(tokenizer.encode(text, add_special_tokens=False))


@functools.lru_cache(maxsize=CACHED_TEXTS)
def _encode_cached(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))
