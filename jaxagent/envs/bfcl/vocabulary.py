"""A small tokenizer for tiny policies: byte-level BPE (arXiv 1508.07909) over the texts of the training split.

Some thousand words cover most of what users ask and what calls look like, at a third of the tokens that bytes take.
"""

import pathlib
from collections.abc import Iterator

from jaxagent.budgets import budget_line
from jaxagent.envs import datasets
from jaxagent.envs.bfcl import tasks
from jaxagent.envs.bfcl.environment import make_environment, make_tasks
from jaxagent.envs.bfcl.expert import CLOSING, INVALID_REPLY, perfect_reply

VOCABULARY = 1536
LARGEST_BUDGET = 64
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
_OPTIONS = {"docs": "names", "tool_format": "python", "split_by": "scenario", "max_result_chars": 400}


def folder() -> pathlib.Path:
    """Where `jaxagent data bfcl` puts the tokenizer; `model.tokenizer` of a config may name it."""
    return datasets.folder("bfcl") / "tokenizer"


def build() -> pathlib.Path:
    """Trains the tokenizer and writes it to `folder()` in the layout of `save_pretrained`; returns the folder."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    numbers = range(1, LARGEST_BUDGET + 1)
    budgets = [budget_line(n, 1, announce=kind, wording="words") for kind in ("total", "remaining") for n in numbers]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(budgets),
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_tokens(budgets)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, split_special_tokens=True, **SPECIAL_TOKENS
    ).save_pretrained(str(folder()))
    return folder()


def _texts() -> Iterator[str]:
    """What a careful player reads and writes on each training task."""
    environment = make_environment(_OPTIONS)
    source = make_tasks(_OPTIONS, "train", len(tasks.SCORED) * 200, 0)
    for index in range(len({source.task(i).id for i in range(len(source))})):
        text, ended, turn = environment.reset(source.task(index), 0).text, None, 0
        while ended is None:
            reply = INVALID_REPLY if turn == 1 else perfect_reply(environment, batched=bool(index % 2))
            yield f"{text} {reply}\n"
            result = environment.step(reply)
            text, ended, turn = result.observation.text, result.ended, turn + 1
        yield f"{text} {CLOSING}\n"
