"""From a config to the live pieces of a rollout: mesh, tokenizer, model shape, environment, sampler, engine."""

import dataclasses
import functools
import pathlib

import jax
from ml_collections import ConfigDict

from jaxagent.config import default_config
from jaxagent.envs import registry
from jaxagent.envs.base import Split, TaskSource
from jaxagent.envs.workers import EnvironmentPool
from jaxagent.errors import UserError
from jaxagent.models import cache, decoder, lora
from jaxagent.models.architectures import load_decoder_config
from jaxagent.models.tokenizer import TINY, load_tokenizer
from jaxagent.models.weights.folders import copy_description, find_pretrained
from jaxagent.rollout.chat import Chat, ChatOptions, make_chat
from jaxagent.rollout.engine import EngineConfig, RolloutEngine
from jaxagent.rollout.sampler import Sampler, SamplerConfig
from jaxagent.sharding import rules
from jaxagent.sharding.mesh import make_mesh

MODEL_FOLDER = "model"  # of a run folder: what describes a pretrained model besides its weights


@dataclasses.dataclass(frozen=True)
class Setup:
    """What training and evaluation share; nothing here changes during a run."""

    config: ConfigDict
    mesh: jax.sharding.Mesh
    chat: Chat
    model: decoder.DecoderConfig
    entry: registry.EnvironmentEntry
    pretrained: pathlib.Path | None = None  # the checkpoint folder of `model.pretrained`

    @property
    def trained_model(self) -> decoder.DecoderConfig:
        """The model that training sees: with adapters where `model.lora` asks for them."""
        return dataclasses.replace(self.model, lora=lora_config(self.config.model.lora))

    def keep_description(self, workdir: str | pathlib.Path) -> None:
        """Copies configuration and tokenizer of a pretrained model to `WORKDIR/model`: the run describes itself."""
        if self.pretrained is None:
            return
        kept = pathlib.Path(workdir, MODEL_FOLDER)
        kept.mkdir(parents=True, exist_ok=True)
        copy_description(self.pretrained, kept)

    def tasks(self, split: Split, size: int) -> TaskSource:
        """The tasks of one split; splits are disjoint by content hash. Training tasks alone depend on the run's
        seed."""
        seed = self.config.seed if split == "train" else self.config.eval.panel_seed
        return self.entry.make_tasks(self.config.env.options.to_dict(), split, size, seed)

    def make_engine(self) -> RolloutEngine:
        """A rollout engine without weights yet: `set_engine_params` gives them."""
        env = self.config.env
        sampler = make_sampler(self)
        pool = EnvironmentPool(
            env.name,
            env.options.to_dict(),
            num_workers=env.workers,
            step_timeout=env.step_timeout,
            step_reward=env.step_reward,
            step_reward_scale=env.step_reward_scale,
            worker_memory_gb=env.worker_memory_gb,
        )
        return RolloutEngine(sampler, pool, self.chat, self.engine_config())

    def engine_config(self) -> EngineConfig:
        """The engine's settings, the same for training and for every kind of evaluation."""
        rollout = self.config.rollout
        return EngineConfig(
            announce=self.config.budget.announce,
            wording=self.config.budget.wording,
            temperature=rollout.temperature,
            retries=self.config.env.retries,
            on_turn_cap=rollout.on_turn_cap,
        )


def make_setup(config: ConfigDict) -> Setup:
    """Checks the config as far as it can be checked before anything is compiled, and builds the shared pieces."""
    _check_rollout(config)
    _check_schedule(config)
    entry = registry.get(config.env.name)
    entry.make_environment(config.env.options.to_dict()).close()
    pretrained = find_pretrained(config.model.pretrained) if config.model.pretrained else None
    tokenizer = load_tokenizer(_tokenizer_name(config.model, pretrained))
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    rows = mesh.shape["data"] * mesh.shape["fsdp"]
    for name, value in (("rollout.slots", config.rollout.slots), ("optimizer.micro_rows", config.optimizer.micro_rows)):
        if value % rows:
            raise UserError(f"{name}={value} must be a multiple of the {rows} devices on the data and fsdp axes")
    if pretrained:
        model = pretrained_config(config.model, len(tokenizer), pretrained)
    else:
        model = decoder_config(config.model, len(tokenizer))
    chat = make_chat(tokenizer, chat_options(config.rollout.chat))
    return Setup(config=config, mesh=mesh, chat=chat, model=model, entry=entry, pretrained=pretrained)


def chat_options(config: ConfigDict) -> ChatOptions:
    """The options of a chat from a config's section `rollout.chat`."""
    plain = config.to_dict()
    return ChatOptions(**plain | {"stop": tuple(plain["stop"]), "variables": tuple(plain["variables"].items())})


def decoder_config(config: ConfigDict, vocab_size: int) -> decoder.DecoderConfig:
    """The decoder's shape from a config's `model` section."""
    names = {field.name for field in dataclasses.fields(decoder.DecoderConfig)} - {"vocab_size", "rope_scaling", "lora"}
    return decoder.DecoderConfig(vocab_size=vocab_size, **{name: config[name] for name in names})


def pretrained_config(config: ConfigDict, tokens: int, folder: pathlib.Path) -> decoder.DecoderConfig:
    """The shape of the checkpoint in `folder`; what is no matter of shape is as the `model` section says.

    Raises `UserError` where the section asks for another shape, or the tokenizer has more tokens than the vocabulary.
    """
    free = {name: config[name] for name in ("compute_dtype", "remat", "attention")}
    model = load_decoder_config(folder, **free)
    defaults = default_config().model
    for field in dataclasses.fields(model):
        if field.name in (*free, "embedding_std", "lora") or field.name not in config:
            continue
        wanted, found = config[field.name], getattr(model, field.name)
        if wanted not in (found, defaults[field.name]):
            raise UserError(
                f"model.{field.name}={wanted}, but model.pretrained={config.pretrained} has {found}: leave the fields "
                "of the shape at their defaults beside model.pretrained"
            )
    if tokens > model.vocab_size:
        raise UserError(f"the tokenizer has {tokens} tokens, the vocabulary of {folder} {model.vocab_size}")
    return model


def lora_config(section: ConfigDict) -> decoder.Lora | None:
    """The adapters of a `model.lora` section, None for rank 0; `UserError` names a wrong target."""
    if section.rank == 0:
        return None
    targets = tuple(section.targets)
    unknown = [name for name in targets if name not in lora.TARGETS]
    if unknown or not targets or len(set(targets)) < len(targets):
        known = ", ".join(lora.TARGETS)
        raise UserError(f"model.lora.targets must be different names out of {known}, got {targets}")
    if section.rank < 0 or not section.alpha > 0:
        raise UserError(f"model.lora needs rank >= 0 and alpha > 0, got {section.rank} and {section.alpha}")
    return decoder.Lora(section.rank, float(section.alpha), tuple(lora.TARGETS[name] for name in targets))


def _tokenizer_name(config: ConfigDict, pretrained: pathlib.Path | None) -> str | pathlib.Path:
    """The pretrained model's own tokenizer unless the config names another."""
    return pretrained if pretrained and config.tokenizer == TINY else config.tokenizer


def make_sampler(setup: Setup) -> Sampler:
    """The sampler of a setup's `rollout` section."""
    rollout = setup.config.rollout
    settings = SamplerConfig(
        slots=rollout.slots,
        max_context=rollout.max_context,
        max_turn_tokens=rollout.max_turn_tokens,
        extend_buckets=tuple(rollout.extend_buckets),
        decode_chunk=min(rollout.decode_chunk, max(rollout.max_turn_tokens - 1, 1)),
        ready_slots=rollout.ready_slots,
        stop_ids=setup.chat.stop_ids,
        top_p=rollout.top_p,
    )
    return Sampler(setup.model, settings, setup.mesh)


@functools.lru_cache(maxsize=8)
def sampler_params_fn(model: decoder.DecoderConfig, mesh: jax.sharding.Mesh):
    """The jitted copy from training parameters to the sampler's: unstacked, split over the tensor axis alone.

    With `model.lora` it takes base and adapters (`lora.combine`) and merges them.
    """
    plain = dataclasses.replace(model, lora=None)
    abstract = jax.eval_shape(lambda: cache.decoding_params(plain, decoder.init_params(plain, jax.random.key(0))))
    shardings = rules.sampler_param_shardings(mesh, cache.decoding_axes(model), abstract)
    return jax.jit(functools.partial(cache.decoding_params, model), out_shardings=shardings)


def _check_rollout(config: ConfigDict) -> None:
    rollout = config.rollout
    if not rollout.temperature > 0:
        raise UserError(f"rollout.temperature must be positive (log-probs need it), got {rollout.temperature}")
    if not 0 < rollout.top_p <= 1:
        raise UserError(f"rollout.top_p must lie in (0, 1], got {rollout.top_p}")
    if rollout.top_p < 1 and config.eval.analysis:
        raise UserError(
            f"rollout.top_p={rollout.top_p} with eval.analysis: the analysis reads whole distributions, not those "
            "that acted; set rollout.top_p=1.0 or eval.analysis=False"
        )
    for name in ("slots", "max_context", "max_turn_tokens", "decode_chunk"):
        if rollout[name] < 1:
            raise UserError(f"rollout.{name} must be at least 1, got {rollout[name]}")
    if rollout.on_turn_cap not in ("end", "close"):
        raise UserError(f"rollout.on_turn_cap must be end or close, got {rollout.on_turn_cap!r}")
    buckets = tuple(rollout.extend_buckets)
    if not buckets or list(buckets) != sorted(set(buckets)) or buckets[0] < 1:
        raise UserError(f"rollout.extend_buckets must be increasing widths from 1 on, got {buckets}")
    if not 0 <= config.seed < 2**31:
        raise UserError(f"seed must lie in 0..2**31-1, got {config.seed}")
    if config.algorithm.replay_budgets and config.budget.announce != "none":
        raise UserError("algorithm.replay_budgets needs budget.announce=none: a policy that was told acts otherwise")


def _check_schedule(config: ConfigDict) -> None:
    """What would otherwise show only at the first checkpoint or look: after updates that would then be lost."""
    for name, least in (
        ("checkpoint.every", 1),
        ("checkpoint.keep", 1),
        ("eval.every", 0),
        ("eval.tasks", 1),
        ("eval.samples", 1),
        ("eval.panel_tasks", 1),
        ("eval.k", 1),
        ("optimizer.micro_rows", 1),
        ("optimizer.logprob_chunk", 1),
        ("rollout.ready_slots", 0),
        ("rollout.max_turns", 1),
    ):
        section, field = name.split(".")
        if config[section][field] < least:
            raise UserError(f"{name} must be at least {least}, got {config[section][field]}")
    percents = tuple(config.eval.percents)
    if not percents or len(set(percents)) != len(percents) or not all(_is_percent(percent) for percent in percents):
        raise UserError(f"eval.percents must be different whole numbers in 1..100, got {percents}")
    if config.eval.k > config.eval.panel_samples:
        raise UserError(
            f"eval.k={config.eval.k} exceeds eval.panel_samples={config.eval.panel_samples}: no unbiased Pass@K exists"
        )
    if not (config.optimizer.learning_rate > 0 and config.sft.learning_rate > 0):
        raise UserError("optimizer.learning_rate and sft.learning_rate must be positive")


def _is_percent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 100
