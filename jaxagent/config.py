"""The configuration of a run: one nested `ml_collections.ConfigDict`, every field with its meaning.

An experiment in `configs/` starts from `default_config()` and overrides what it needs; the command line overrides
single fields (`--config.optimizer.learning_rate=1e-4`). A field that does not exist raises: the dictionary is locked.
"""

from ml_collections import ConfigDict

from jaxagent.errors import UserError


def default_config() -> ConfigDict:
    """Every field of every section with its default."""
    config = ConfigDict()
    config.seed = 0  # the run's seed: task order, budgets, sampling noise, environment noise, initial weights
    config.env = _env()
    config.budget = _budget()
    config.model = _model()
    config.rollout = _rollout()
    config.sft = _sft()
    config.algorithm = _algorithm()
    config.optimizer = _optimizer()
    config.mesh = _mesh()
    config.eval = _eval()
    config.checkpoint = _checkpoint()
    config.logging = _logging()
    return config.lock()


def _env() -> ConfigDict:
    env = ConfigDict()
    env.name = "lookup"  # a registered environment: `jaxagent.envs.registry`
    env.options = ConfigDict()  # keyword arguments of the environment and its tasks; checked by the environment
    env.options.unlock()
    env.step_reward = "none"  # none | progress | optimal (both by the environment's oracle) | module:function
    env.step_reward_scale = 0.1  # factor of step rewards
    env.train_tasks = 1 << 20  # length of the training source; generated tasks are made on demand
    env.workers = 0  # environment processes; 0 steps them inside this process
    env.step_timeout = 30.0  # seconds a worker may take for one reset or step before it is killed and replaced
    env.worker_memory_gb = 0.0  # 10^9 bytes that a worker may allocate; replaced in between past half; 0: no limit
    env.retries = 2  # times an episode that the infrastructure voided is tried again
    return env


def _budget() -> ConfigDict:
    budget = ConfigDict()
    budget.sampler = "budgetmix"  # budgetmix | fixed | uniform | curriculum
    budget.percent = 100  # of the task's full budget, for `fixed`
    budget.stages = ()  # ((first step, percent), ...) for `curriculum`
    budget.announce = "total_and_remaining"  # total_and_remaining | remaining | total | none
    budget.announce_probability = 1.0  # share of groups that are told their budget
    budget.turn_cost = 0.0  # c: a success is worth 1 - c * turns / max_turns of its reward
    budget.wording = "sentence"  # sentence | words (one word a number, for tiny models)
    return budget


def _model() -> ConfigDict:
    model = ConfigDict()
    model.tokenizer = "tiny"  # `tiny` is the one inside the package; or a folder that transformers can load
    model.pretrained = ""  # checkpoint folder, imported model or hub name: shape, weights, tokenizer; empty: random
    model.init_from = ""  # a run folder whose best (else last) checkpoint gives the initial weights; empty: random
    model.lora = _lora()
    model.width = 64  # residual stream
    model.num_layers = 2
    model.num_heads = 4
    model.num_kv_heads = 4  # fewer than num_heads: grouped-query attention
    model.head_dim = 16
    model.mlp_width = 176  # SwiGLU hidden width
    model.rope_base = 10_000.0
    model.norm_eps = 1e-6
    model.tie_embeddings = True
    model.embedding_std = 0.3  # tiny models cannot read single tokens from much smaller embeddings
    model.compute_dtype = "float32"  # float32 | bfloat16; master weights, norms and log-probs stay float32
    model.remat = "none"  # none | dots | full: what the backward pass recomputes of a block (all but weight products)
    model.attention = "auto"  # auto (by platform) | blocks | xla | cudnn
    model.qkv_bias = False  # biases on query, key and value (Qwen2)
    model.qk_norm = False  # a norm on every query and key head (Qwen3)
    model.sliding_window = 0  # tokens that a layer looks back, itself included; 0: all
    model.full_attention_layers = 0  # first layers that look at all tokens in spite of the window
    return model


def _lora() -> ConfigDict:
    lora = ConfigDict()
    lora.rank = 0  # of low-rank adapters, which alone are trained; 0: all weights are
    lora.alpha = 32.0  # their product is multiplied by alpha / rank
    lora.targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return lora


def _rollout() -> ConfigDict:
    rollout = ConfigDict()
    rollout.slots = 64  # rows of the sampler's batch and of its KV cache
    rollout.max_context = 256  # tokens an episode may hold; rows of the KV cache
    rollout.max_turns = 32  # width of the turn arrays: the largest full budget of any task
    rollout.max_turn_tokens = 8  # cap of one reply
    rollout.on_turn_cap = "end"  # end (the episode ends there, reward 0) | close (the reply is closed and played)
    rollout.extend_buckets = (8, 32)  # widths of the compiled extend steps; longer observations are appended in pieces
    rollout.decode_chunk = 16  # decode steps on the device before the host looks
    rollout.ready_slots = 0  # the device returns when so many rows have stopped; 0: an eighth of the slots
    rollout.temperature = 1.0
    rollout.top_p = 1.0  # evaluation alone: below 1 only the likeliest tokens that reach this mass are drawn
    rollout.chat = _chat()
    return rollout


def _chat() -> ConfigDict:
    """For tokenizers with a chat template; others speak in lines."""
    chat = ConfigDict()
    chat.system = ""  # system prompt; empty: the template's own default
    chat.reasoning = "auto"  # auto (the template's default) | on | off
    chat.stop = ()  # texts of further tokens that end a reply
    chat.observations = "user"  # user | tool: the role in which observations after the first are told
    chat.tool_calls = "none"  # none | json | python: the format of calls that the system prompt asks for
    chat.variables = ConfigDict()  # further variables of the template, such as date_string
    chat.variables.unlock()
    return chat


def _sft() -> ConfigDict:
    sft = ConfigDict()
    sft.steps = 200  # 0: the base policy is the initial weights as they are (a pretrained model)
    sft.demonstrations = 64  # fresh scripted demonstrations a step
    sft.learning_rate = 2e-3
    sft.observation_weight = 1.0  # weight of the observations' mean loss beside that of the replies; 0: replies alone
    sft.line_share = 0.5  # share of demonstrations with a budget line, its total drawn from the grid and cut there
    return sft


def _algorithm() -> ConfigDict:
    algorithm = ConfigDict()
    algorithm.name = "grpo"  # grpo | dr_grpo | rloo | reinforce_plus_plus | gigpo | ppo
    algorithm.steps = 200  # updates: one batch of rollouts each
    algorithm.groups = 8  # task groups an update
    algorithm.group_size = 8  # episodes a group
    algorithm.normalize_std = False  # divide the advantage by the group's standard deviation (ddof 1); grpo and gigpo
    algorithm.std_floor = 0.0  # added to that standard deviation; needed beside a turn cost
    algorithm.group_baseline = True  # reinforce_plus_plus: centre on the group's mean first, else on the batch's
    algorithm.clip_low = 0.2
    algorithm.clip_high = 0.28
    algorithm.dual_clip = 0.0  # bound of the loss at negative advantages, above 1 (3.0 is usual); 0: off
    algorithm.ratio = "token"  # token | gspo_sequence | gspo_token
    algorithm.aggregation = "auto"  # token_mean | sequence_mean | prompt_mean | dr_grpo; auto: the algorithm's own
    algorithm.entropy_coefficient = 0.0  # weight of an entropy bonus in the loss
    algorithm.importance_cap = 0.0  # truncated importance sampling, old over behaviour, at most this (2.0); 0: off
    algorithm.sequence_mask = ()  # (low, high): episodes whose ratio old over behaviour left it are out of the loss
    algorithm.sequence_mask_mean = False  # that ratio is the geometric mean over tokens instead of the product
    algorithm.epochs = 1  # passes over a batch with fixed behaviour and old log-probs
    algorithm.minibatches = 1  # gradient steps a pass; whole episodes, drawn once a batch
    algorithm.old_logprobs = "behaviour"  # behaviour | recomputed (one no-gradient pass before the update)
    algorithm.replay_budgets = False  # re-score full-length, unannounced rollouts at a drawn budget
    algorithm.overruns = "zero"  # episodes cut by their budget: zero | mask (no loss) | drop (no statistics) | penalty
    algorithm.overrun_penalty = 0.0  # the outcome is minus this, for `penalty`
    algorithm.zero_variance = "keep"  # groups of equal returns: keep | drop | redraw (another task at the same tenth)
    algorithm.max_redraws = 2  # rounds of redraws an update; groups that are still flat are dropped
    algorithm.kl = _kl()
    algorithm.gigpo = _gigpo()
    algorithm.ppo = _ppo()
    algorithm.critic = _critic()
    return algorithm


def _kl() -> ConfigDict:
    kl = ConfigDict()
    kl.coefficient = 0.0  # weight of KL(policy || reference); 0: no reference is kept
    kl.kind = "k3"  # k1 | k2 | k3 | k3_st (value of k3, gradient of k2)
    kl.place = "loss"  # loss | reward
    kl.reference = "frozen"  # frozen (the initial policy) | moving_average
    kl.decay = 0.99  # of the moving average, an update
    return kl


def _gigpo() -> ConfigDict:
    gigpo = ConfigDict()
    gigpo.gamma = 0.95  # discount a turn
    gigpo.step_weight = 1.0  # weight of the step part beside the episode part
    gigpo.episode_stats = "trajectories"  # trajectories | rows (an episode counts once a turn)
    gigpo.require_distinct_trajectories = False  # a state that one episode alone visits says nothing
    gigpo.anchor_match = "exact"  # exact | similar (texts that are 95 % alike)
    gigpo.anchor_with_remaining = False  # turns left are part of the state
    return gigpo


def _ppo() -> ConfigDict:
    ppo = ConfigDict()
    ppo.advantage = "turn_gae"  # token_gae | turn_gae | bi_level_gae
    ppo.gamma = 1.0  # a token; a turn for turn_gae
    ppo.lam = 1.0
    ppo.turn_gamma = 0.95  # bi_level_gae: the level of turns
    ppo.turn_lam = 1.0
    ppo.bootstrap = "turn_start"  # bi_level_gae: turn_start | turn_end
    ppo.whiten = True  # advantages of the whole batch to mean 0 and variance 1
    ppo.value_clip = 0.2  # of the value loss; 0: off
    return ppo


def _critic() -> ConfigDict:
    critic = ConfigDict()
    critic.kind = "none"  # none | head (on the policy's trunk) | separate (a network of the policy's shape)
    critic.learning_rate = 1e-3  # of the critic's own optimizer, otherwise as the section `optimizer`
    critic.warmup_steps = 0  # linear, of that learning rate
    critic.alone_updates = 0  # first updates in which the critic learns and the policy stands still
    critic.trunk_weight = 0.1  # head: weight of the value loss in the gradient of the shared trunk
    return critic


def _optimizer() -> ConfigDict:
    optimizer = ConfigDict()
    optimizer.name = "adam"  # adam | adamw | sgd
    optimizer.learning_rate = 5e-4
    optimizer.schedule = "constant"  # constant | cosine
    optimizer.warmup_steps = 0  # linear, in gradient steps
    optimizer.decay_steps = 0  # cosine: gradient steps until the final share, the warm-up included
    optimizer.final_share = 0.0  # cosine: of the learning rate, at the end of the decay
    optimizer.b1 = 0.9
    optimizer.b2 = 0.999
    optimizer.eps = 1e-5
    optimizer.weight_decay = 0.0  # adamw only
    optimizer.clip_norm = 1.0  # global gradient norm; 0: no clipping
    optimizer.row_tokens = 256  # length of a packed training row
    optimizer.micro_rows = 16  # rows of one micro-batch
    optimizer.logprob_chunk = 1024  # tokens whose logits exist at once
    return optimizer


def _mesh() -> ConfigDict:
    mesh = ConfigDict()
    mesh.data = -1  # devices on each axis; -1 takes what is left
    mesh.fsdp = 1
    mesh.tensor = 1
    return mesh


def _eval() -> ConfigDict:
    evaluation = ConfigDict()
    evaluation.every = 50  # updates between looks at the held-out tasks; 0: never
    evaluation.tasks = 32  # held-out tasks of such a look (never the panel)
    evaluation.samples = 2  # episodes a task and told budget, in such a look
    evaluation.percents = (25, 50, 75, 100)  # told budgets
    evaluation.panel_seed = 1  # makes the panel and the held-out tasks: the same for every training seed
    evaluation.panel_tasks = 100  # tasks of the panel, for `jaxagent evaluate`
    evaluation.panel = ""  # panel file (`panel.json` of an evaluation): its tasks and no others; empty: the first ones
    evaluation.panel_samples = 16  # n: episodes a panel task and told budget
    evaluation.k = 8  # K of Pass@(K,T)
    evaluation.analysis = False  # also step quality, recovery and what the rest of this section costs in rollouts
    evaluation.reference_run = (
        ""  # run folder of the policy to compare with (the base): injections, hybrids, likelihood
    )
    evaluation.analysis_samples = 4  # episodes a panel task that the analysis looks at, at the full budget
    evaluation.analysis_states = 500  # states of the frozen set, and injected errors at most
    evaluation.recovery_horizon = 3  # turns within which an error must be made good
    return evaluation


def _checkpoint() -> ConfigDict:
    checkpoint = ConfigDict()
    checkpoint.every = 50  # updates between checkpoints; the last update is always saved
    checkpoint.keep = 2
    return checkpoint


def _logging() -> ConfigDict:
    logging = ConfigDict()
    logging.trajectories = "none"  # all | sample:K | none
    logging.tensorboard = True
    return logging


ARMS = {
    "base": {},
    "grpo_full": {"sampler": "fixed", "percent": 100},
    "grpo_full_noline": {"sampler": "fixed", "percent": 100, "announce": "none"},
    "budgetmix": {"sampler": "budgetmix"},
    "budgetmix_noline": {"sampler": "budgetmix", "announce": "none"},
}
_PPO = {"algorithm.name": "ppo", "algorithm.normalize_std": False, "algorithm.critic.kind": "head"}
# Algorithms other than GRPO: the arm whose budgets they train at, and their fields.
ALGORITHM_ARMS = {
    "gigpo": ("grpo_full", {"algorithm.name": "gigpo"}),
    "gigpo_budgetmix": ("budgetmix", {"algorithm.name": "gigpo"}),
    "ppo": ("grpo_full", _PPO),
    "ppo_budgetmix": ("budgetmix", _PPO),
    "dr_grpo": ("grpo_full", {"algorithm.name": "dr_grpo", "algorithm.normalize_std": False}),
    "rloo": ("grpo_full", {"algorithm.name": "rloo", "algorithm.normalize_std": False}),
}


def apply_variant(config: ConfigDict, variant: str, runlocal: dict[str, object]) -> ConfigDict:
    """Applies what stands behind the colon of `--config=NAME:VARIANT`: arms and `runlocal`, with commas between.

    GRPO arms differ in the budget section alone: `grpo_full` trains at the full budget with the line, `budgetmix` at a
    drawn one, `_noline` hides the line; `base` is the cloned policy that all of them start from. `gigpo`, `ppo`,
    `dr_grpo` and `rloo` name the algorithm, at the full budget; `_budgetmix` behind it, or as a further word, draws the
    budgets.

    Args:
      config: changed in place and returned.
      variant: e.g. `budgetmix`, `runlocal`, `grpo_full,runlocal`, `rloo,budgetmix`; empty for none.
      runlocal: dotted fields that shrink the experiment to a smoke run.

    Raises:
      UserError: an unknown word.
    """
    for word in filter(None, variant.split(",")):
        if word == "runlocal":
            config.update_from_flattened_dict(runlocal)
        elif word in ARMS:
            config.budget.update(ARMS[word])
        elif word in ALGORITHM_ARMS:
            arm, fields = ALGORITHM_ARMS[word]
            config.budget.update(ARMS[arm])
            config.update_from_flattened_dict(fields)
        else:
            raise UserError(f"unknown variant {word!r}; choose from {', '.join([*ARMS, *ALGORITHM_ARMS, 'runlocal'])}")
    return config
