"""Published checkpoints compute here what they compute by plain loops; bad ones are named in one line."""

import functools
import json
import os
import pickle

import jax
import ml_dtypes
import numpy as np
import pytest
from published_checkpoints import CASES, VOCAB, make_config, plain_log_probs, write_checkpoint
from safetensors.numpy import load_file, save_file

from jaxagent.errors import UserError
from jaxagent.models import cache as kv
from jaxagent.models import decoder
from jaxagent.models.architectures import load_decoder_config
from jaxagent.models.weights import folders, importing
from jaxagent.models.weights.export import export_checkpoint
from jaxagent.models.weights.load import load_params
from jaxagent.models.weights.sources import SafetensorsFolder
from jaxagent.sharding import rules
from jaxagent.sharding.mesh import make_mesh

LENGTH = 12
run_forward = jax.jit(decoder.forward, static_argnums=0)


def load(folder, mesh=None):
    model = load_decoder_config(folder)
    mesh = mesh or make_mesh(devices=jax.devices()[:1])
    shardings = rules.param_shardings(mesh, decoder.logical_axes(model), decoder.param_shapes(model))
    return model, load_params(SafetensorsFolder(folder), model, shardings)


def log_probs(params, hidden):
    return np.asarray(jax.nn.log_softmax(hidden @ decoder.head_matrix(params), axis=-1))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """case -> (folder, config, tensors, model, params)."""

    @functools.cache
    def make(case):
        folder = tmp_path_factory.mktemp(case)
        config, tensors = write_checkpoint(folder, case, files=1 if CASES[case]["tied"] else 3, tokenizer=False)
        return folder, config, tensors, *load(folder)

    return make


@pytest.mark.parametrize("case", CASES)
def test_log_probs_equal_plain_loops_near_and_far(loaded, case):
    _, config, tensors, model, params = loaded(case)
    ids = np.random.default_rng(1).integers(0, VOCAB, LENGTH)
    for first in (0, 1000, 20_000):
        positions = np.arange(first, first + LENGTH)[None]
        got = log_probs(params, run_forward(model, params, ids[None], positions, np.ones((1, LENGTH), int)))[0]
        np.testing.assert_allclose(got, plain_log_probs(config, tensors, ids, first), atol=1e-4 if first == 0 else 2e-3)


@pytest.mark.parametrize("case", CASES)
def test_padding_packing_and_cached_decoding_equal_the_plain_forward(loaded, case):
    _, _, _, model, params = loaded(case)
    rng = np.random.default_rng(2)
    first, second = rng.integers(0, VOCAB, LENGTH), rng.integers(0, VOCAB, 7)

    def hidden(tokens, positions, segments):
        return np.asarray(run_forward(model, params, *(np.asarray(x)[None] for x in (tokens, positions, segments))))[0]

    plain = [hidden(ids, np.arange(len(ids)), np.ones(len(ids), int)) for ids in (first, second)]
    around = (4, 21 - 4 - LENGTH)
    padded = hidden(np.pad(first, around), np.pad(np.arange(LENGTH), around), np.pad(np.ones(LENGTH, int), around))
    np.testing.assert_allclose(padded[4 : 4 + LENGTH], plain[0], atol=1e-4)
    positions = np.concatenate([np.arange(LENGTH), np.arange(7), [0, 0]])
    segments = np.array([1] * LENGTH + [2] * 7 + [0, 0])
    packed = hidden(np.concatenate([first, second, [3, 3]]), positions, segments)
    np.testing.assert_allclose(packed[: LENGTH + 7], np.concatenate(plain), atol=1e-4)
    append = jax.jit(kv.append, static_argnums=0)
    decoding, cache = kv.decoding_params(model, params), kv.init_cache(model, 2, 16)
    rows = np.stack([first, np.pad(second, (0, LENGTH - 7))])
    place = np.zeros(2, int)
    for width in (4, 1, 1, 4):
        counts = np.minimum(width, np.array([LENGTH, 7]) - place)
        columns = np.minimum(place[:, None] + np.arange(width), LENGTH - 1)
        window = np.take_along_axis(rows, columns, axis=1)
        states, cache = append(model, decoding, cache, window, counts)
        place = place + counts
        for row in np.flatnonzero(counts):
            np.testing.assert_allclose(states[row], plain[row][place[row] - 1], atol=1e-4)


def test_shards_on_eight_devices_hold_the_same_bits(loaded):
    folder, _, _, model, params = loaded("qwen3")
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    _, spread = load(folder, mesh)
    shardings = rules.param_shardings(mesh, decoder.logical_axes(model), decoder.param_shapes(model))
    jax.tree.map(np.testing.assert_array_equal, spread, params)
    for array, sharding in zip(jax.tree.leaves(spread), jax.tree.leaves(shardings), strict=True):
        assert array.sharding.is_equivalent_to(sharding, array.ndim)


def test_half_precision_is_widened_exactly(tmp_path):
    _, tensors = write_checkpoint(tmp_path, "qwen2", dtype=ml_dtypes.bfloat16, tokenizer=False)
    _, params = load(tmp_path)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
    expected = np.asarray(tensors["model.layers.1.mlp.up_proj.weight"], np.float32).T
    np.testing.assert_array_equal(params["blocks"]["up"][1], expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("limit", [1 << 30, 40_000])
def test_import_export_import_is_bit_equal(loaded, tmp_path, case, limit):
    folder, config, tensors, model, params = loaded(case)
    target = tmp_path / "out"
    export_checkpoint(target, model, params, described_by=folder, max_positions=64, max_file_bytes=limit)
    written = {}
    for file in target.glob("*.safetensors"):
        assert limit > 1 << 20 or len(load_file(file)) == 1 or file.stat().st_size < 50_000
        written |= load_file(file)
    assert written.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(written[name], array)
    assert json.loads((target / "config.json").read_text()) == config
    assert (target / "generation_config.json").read_bytes() == (folder / "generation_config.json").read_bytes()
    again, params_again = load(target)
    assert again == model
    jax.tree.map(np.testing.assert_array_equal, params_again, params)


def test_a_tied_checkpoint_may_repeat_its_head_but_not_contradict_it(tmp_path):
    """F25: tied with a redundant head loads; another head, or none where it is untied, raises."""
    _, tensors = write_checkpoint(tmp_path, "llama3", tokenizer=False)
    embedding = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embedding.copy()}, tmp_path / "model.safetensors")
    assert "head" not in load(tmp_path)[1]
    save_file(tensors | {"lm_head.weight": embedding + 1}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"lm_head\.weight differs"):
        load(tmp_path)
    config = make_config("llama3") | {"tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"lm_head\.weight is missing.*tie_word_embeddings=false"):
        load(tmp_path)


def _without(name):
    def spoil(folder, tensors):
        save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")

    return spoil


def _with(**changed):
    def spoil(folder, tensors):
        save_file(tensors | {name.replace("__", "."): a for name, a in changed.items()}, folder / "model.safetensors")

    return spoil


def _truncate(folder, _):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _pickle_alone(folder, tensors):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weights": 1}))


def _pickle_renamed(folder, tensors):
    (folder / "model.safetensors").write_bytes(pickle.dumps({"weights": list(range(1000))}))


def _index(weight_map):
    def spoil(folder, _):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return spoil


def _config(**changed):
    def spoil(folder, _):
        (folder / "config.json").write_text(json.dumps(make_config("llama3") | changed))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without("model.layers.2.mlp.up_proj.weight"), r"lacks model\.layers\.2\.mlp\.up_proj\.weight of the 29 tens"),
        (
            _with(model__norm__weight=np.ones(47, np.float32)),
            r"model\.norm\.weight has shape \(47,\), expected \(48,\)",
        ),
        (_with(model__extra=np.ones(3, np.float32)), r"holds model\.extra, which this architecture does not have"),
        (_with(model__norm__weight=np.ones(48, np.int8)), r"model\.norm\.weight is I8"),
        (_truncate, "model.safetensors: is no whole safetensors file"),
        (_pickle_alone, r"pickle alone \(pytorch_model.bin\)"),
        (_pickle_renamed, "is no whole safetensors file"),
        (_index({"model.norm.weight": "model-00001-of-00002.safetensors"}), "model-00001-of-00002.safetensors is miss"),
        (_index({"model.norm.weight": "../model.safetensors"}), "no plain name"),
        (_index({"absent.weight": "model.safetensors"}), r"lacks the tensor absent\.weight"),
        (_index({}), "has no weight_map"),
        (_config(num_hidden_layers=10**9), "num_hidden_layers=1000000000"),
        (_config(num_hidden_layers=400), "400 layers, but 29 tensors"),
        (_config(hidden_size=48 * 10**9), "has shape"),
        (_config(quantization_config={"quant_method": "awq"}), r"quantised \(awq\)"),
    ],
)
def test_a_bad_checkpoint_is_one_clear_line(tmp_path, spoil, message):
    _, tensors = write_checkpoint(tmp_path, "llama3", tokenizer=False)
    spoil(tmp_path, tensors)
    with pytest.raises(UserError, match=message) as raised:
        load(tmp_path)
    assert "\n" not in str(raised.value)


def test_old_rotary_buffers_are_ignored(tmp_path):
    _, tensors = write_checkpoint(tmp_path, "llama3", tokenizer=False)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file(tensors | {name: np.ones(4, np.float32)}, tmp_path / "model.safetensors")
    load(tmp_path)


def test_a_hostile_tokenizer_is_one_clear_line(tmp_path):
    write_checkpoint(tmp_path / "model", "llama3")
    importing.check_folder(tmp_path / "model")
    path = tmp_path / "model" / "tokenizer_config.json"
    good = json.loads(path.read_text())
    (tmp_path / "elsewhere.json").write_text("{}")
    for hostile in (str(tmp_path / "elsewhere.json"), "../elsewhere.json"):
        path.write_text(json.dumps(good | {"tokenizer_file": hostile}))
        with pytest.raises(UserError, match=r"tokenizer_file.*outside"):
            importing.check_folder(tmp_path / "model")
    for loop in ("{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3, "{{ 'x' * 10 ** 9 }}"):
        path.write_text(json.dumps(good | {"chat_template": loop}))
        importing.check_folder(tmp_path / "model")  # at once: only a run renders it, within bounds


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "[]"),
        ("tokenizer.json", "[" * 100_000),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"tokenizer_class": 5}'),
        ("tokenizer_config.json", '{"bos_token": 5}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1": 5}}'),
        ("tokenizer_config.json", '{"chat_template": [1]}'),
        ("special_tokens_map.json", "[]"),
        ("added_tokens.json", "[1]"),
    ],
)
def test_a_damaged_tokenizer_is_one_clear_line(tmp_path, name, text):
    write_checkpoint(tmp_path, "llama3")
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"model\.tokenizer") as raised:
        importing.check_folder(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_checkpoint_without_tokenizer_is_refused(tmp_path):
    write_checkpoint(tmp_path, "llama3")
    for path in tmp_path.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(UserError, match="holds no tokenizer"):
        importing.check_folder(tmp_path)


def test_links_and_pipes_cannot_stand_for_descriptions(tmp_path):
    """A link would carry a private file into copies and exports; the hub's cache links to its own blobs."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "x"}')
    folder = tmp_path / "cache" / "snapshots" / "abc"
    write_checkpoint(folder, "llama3")
    blobs = tmp_path / "cache" / "blobs"
    blobs.mkdir()
    (folder / "tokenizer.json").rename(blobs / "hash")
    (folder / "tokenizer.json").symlink_to("../../blobs/hash")
    importing.check_folder(folder)
    path = folder / "special_tokens_map.json"
    for target in (secret, tmp_path / "absent", "/dev/zero"):
        path.symlink_to(target)
        with pytest.raises(UserError, match=r"special_tokens_map\.json: is "):
            importing.check_folder(folder)
        path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="no plain file"):
        folders.find_pretrained(str(folder))
