"""The critic: its initial weights, its loss, and the states that it evaluates."""

import pytest
import torch

from operant import api
from operant.language import models
from operant.language.configs import ModelOptions
from operant.language.critic import Critic, CriticConfig, starting_critic, warn_of_warmup
from operant.language.packing import Sample, pack
from operant.language.scoring import load_scorer
from operant.state import clone

SAMPLES = [Sample([1, 10], [20, 21, 2]), Sample([1, 10], [22]), Sample([1, 11, 12], [23, 2])]


def scrambled(critic):
    generator = torch.Generator().manual_seed(0)
    critic.head.weight.data = torch.randn(critic.head.weight.shape, generator=generator)
    critic.head.bias.data.fill_(0.3)
    return critic


def test_a_state_is_valued_from_what_was_there_before_its_token(make_model):
    critic = scrambled(Critic.copy_of(make_model()))
    values = critic(pack(SAMPLES))
    changed = [Sample([1, 10], [20, 21, 30]), *SAMPLES[1:]]  # another last token: only the state after it changes
    others = critic(pack(changed))
    torch.testing.assert_close(values.before, others.before, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(values.after[1:], others.after[1:], rtol=1e-5, atol=1e-6)
    assert abs((values.after[0] - others.after[0]).item()) > 1e-3


def test_values_begin_at_zero(make_model):
    model = make_model()
    for critic in (Critic.copy_of(model), Critic.sharing(model)):
        packed = pack(SAMPLES)
        before, after = critic(packed, model.read(packed))
        assert before.tolist() == [0.0] * 6
        assert after.tolist() == [0.0] * 3


@pytest.mark.parametrize("kind", ["llama", "llama-tied", "gpt2"])
def test_a_copy_trains_all_that_values_depend_on_and_shares_nothing(make_model, kind):
    model = make_model(kind)
    critic = scrambled(Critic.copy_of(model))
    critic(pack(SAMPLES)).before.sum().backward()
    assert [name for name, value in critic.trained().items() if value.grad is None] == []
    own = {value.data_ptr() for value in model.network.parameters()}
    assert own.isdisjoint(value.data_ptr() for value in critic.trained().values())
    assert all(value.grad is None for value in model.network.parameters())
    left = set(model.trained()) - {name.removeprefix("trunk.") for name in critic.trained()}
    assert left == (set() if kind != "llama" else {"lm_head.weight"})


def test_a_shared_critic_sends_its_gradient_into_the_policy(make_model):
    model = make_model()
    critic, packed = scrambled(Critic.sharing(model)), pack(SAMPLES)
    assert set(critic.trained()) == {"head.weight", "head.bias"}
    critic(packed, model.read(packed)).before.sum().backward()
    assert float(model.network.model.embed_tokens.weight.grad.abs().sum()) > 0
    with pytest.raises(ValueError, match="needs the hidden states of the policy"):
        critic(packed)


def test_a_copy_of_an_adapted_model_trains_its_adapter_alone(make_network, characters):
    model = models.finish(make_network(), characters, ModelOptions(lora_r=2), seed=0)
    critic = Critic.copy_of(model)
    assert len(critic.trained()) == len(model.trained()) + 2
    assert all("lora_" in name or name.startswith("head.") for name in critic.trained())


def test_a_state_is_taken_back_whole_and_by_its_own_kind(make_model):
    model = make_model()
    critic = scrambled(Critic.copy_of(model))
    state = clone(critic.state_dict())
    other = Critic.copy_of(make_model(seed=1))
    other.load_state_dict(state)
    packed = pack(SAMPLES)
    assert torch.equal(other(packed).before, critic(packed).before)
    with pytest.raises(ValueError, match=r"differ in trained parameters, first in 'trunk.*--critic"):
        Critic.sharing(model).load_state_dict(state)


@pytest.fixture(scope="module")
def reward_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "rm"
    sizes = {"train_examples": 32, "held_out": 4, "batch_size": 8, "budget": 32}
    api.train("reward-model", "preference:noise=0", run=folder, progress="silent", **sizes)
    return str(folder)


def test_a_reward_model_becomes_a_critic_with_its_scores(reward_run, characters):
    options = ModelOptions(init=reward_run)
    critic = Critic.from_reward_model(reward_run, options, tokenizer=characters, seed=0)
    expected = load_scorer(reward_run).scorer.scores(SAMPLES)
    assert float(expected.abs().sum()) > 0
    torch.testing.assert_close(critic(pack(SAMPLES)).after.detach(), expected)
    critic(pack(SAMPLES)).before.sum().backward()
    assert [name for name, value in critic.trained().items() if value.grad is None] == []


def test_a_reward_model_that_reads_other_tokens_is_rejected(reward_run, words):
    with pytest.raises(ValueError, match=r"another vocabulary than the policy.*--critic copy"):
        Critic.from_reward_model(reward_run, ModelOptions(), tokenizer=words, seed=0)


def test_the_configuration_determines_the_initial_critic(reward_run, make_model):
    model = make_model()

    def start(how, run=""):
        return starting_critic(CriticConfig(critic=how, reward_model=run), model, outcome=bool(run), seed=0)

    assert start("shared").trunk is None
    assert start("copy", reward_run).trunk.width == model.width
    assert start("auto").trunk.width == model.width
    assert start("auto", reward_run).trunk.width == 128  # the width of the reward model
    assert start("reward-model", reward_run).trunk.width == 128
    auto = CriticConfig(reward_model=reward_run)
    assert starting_critic(auto, model, outcome=True, same_vocabulary=False, seed=0).trunk.width == model.width
    config = CriticConfig(critic="reward-model", reward_model=reward_run)
    with pytest.raises(ValueError, match="scores steps: use --critic copy"):
        starting_critic(config, model, outcome=False, seed=0)


@pytest.mark.parametrize(("budget", "warned"), [(8, True), (9, False)])
def test_a_budget_without_a_batch_for_the_policy_gives_a_warning(caplog, budget, warned):
    warn_of_warmup(CriticConfig(critic_warmup=2), batch=4, budget=budget)
    assert ("the budget of 8 prompts ends within critic_warmup=2 batches of 4 prompts" in caplog.text) == warned


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"critic": "none"}, "critic must be auto, copy, reward-model or shared, got 'none'"),
        ({"critic": "reward-model"}, "needs a reward model"),
        ({"gae_lambda": 1.5}, r"gae_lambda must be in \[0, 1\], got 1.5"),
        ({"clip_range_vf": 0.0}, r"clip_range_vf must be in \(0, inf\) or None, got 0.0"),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        CriticConfig(**values)
