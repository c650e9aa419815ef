"""Learners with a replay buffer: where new episodes begin on resume, no sequence joins two of them."""

import pytest
import torch

from operant.catalog import find
from operant.envs import Wrapper, make
from operant.runtime.priorities import Priorities
from operant.runtime.replay import Replay
from operant.runtime.rollouts import Collector
from operant.state import clone
from operant.worlds.replay_learner import insert_windows, require_sequence

SEEDS = (3, 5)
SIZES = {
    "muzero": {"num_steps": 4, "simulations": 2, "latent_size": 4, "hidden_sizes": (4,), "support_size": 3},
    "dreamer": {"num_steps": 4, "deter": 8, "stoch": 2, "classes": 2, "units": 4, "learning_starts": 100},
    "world-models": {"num_steps": 10, "collect_steps": 40, "latent_size": 2, "vae_hidden_sizes": (4,)},
    "mbpo": {"learning_starts": 12, "hidden_sizes": (4,), "model_hidden_sizes": (4,)},
    "pets": {"learning_starts": 12, "model_hidden_sizes": (4,)},
    "mrq": {"learning_starts": 12},
}
TASKS = {"muzero": "CartPole-v1", "world-models": "operant/PixelCatch-v0"}


@pytest.mark.parametrize(
    ("length", "num_envs", "num_steps", "smallest"), [(16, 1, 4, 13), (64, 8, 16, 385), (4, 8, 16, 1), (17, 2, 16, 33)]
)
def test_a_budget_contains_a_sequence_of_every_environment(length, num_envs, num_steps, smallest):
    require_sequence(smallest, length, "td_steps", rows=num_envs, steps=num_steps)
    with pytest.raises(ValueError, match=f"at least {smallest} steps, got {smallest - 1}: .* num_envs, td_steps"):
        require_sequence(smallest - 1, length, "td_steps", rows=num_envs, steps=num_steps)


@pytest.mark.parametrize(("window", "starts"), [(1, [0, 1, 2, 3, 4]), (3, [0, 1, 2]), (6, [])])
def test_steps_get_priorities_once_they_can_start_a_window(window, starts):
    """Of five steps in two environments, added as three and two, those with `window - 1` later ones can."""
    replay = Replay(seeds=1, rows=2, capacity=16, device=torch.device("cpu"))
    priorities = Priorities(seeds=1, capacity=16, alpha=1.0)
    env = make("CartPole-v1", 2, [0])
    collector = Collector(env, seeds=1)
    for steps in (3, 2):
        rollout = collector.collect(steps, lambda obs, t: ((), torch.zeros(1, 2, dtype=torch.int64)))
        replay.add(rollout, torch.zeros(steps, 1, 2, dtype=torch.int64))
        insert_windows(priorities, replay, steps=steps, window=window)
    assert priorities.levels[0][0, :16].view(8, 2).sum(1).nonzero().flatten().tolist() == starts
    env.close()


class Anew(Wrapper):
    begins_anew = True


@pytest.mark.parametrize("algorithm", SIZES)
def test_episodes_end_where_environments_begin_anew(algorithm):
    entry = find(algorithm)
    config = entry.config_class(num_envs=2, **SIZES[algorithm])

    def begun():
        env = Anew(make(TASKS.get(algorithm, "Pendulum-v1"), 2, SEEDS))
        return entry.learner_class(config, env, seeds=SEEDS, budget=1000)

    whole = begun()
    whole.iterate()
    again = begun()
    again.load_state_dict(clone(whole.state_dict()))
    replay = again.replay if hasattr(again, "replay") else again.experience.replay
    assert replay.added
    newest = (replay.added - 1) % replay.length
    assert replay.fields["ended"][newest].all()
    before = whole.replay if hasattr(whole, "replay") else whole.experience.replay
    assert not before.fields["ended"][newest].all()
    if hasattr(again, "hidden_state"):
        assert torch.equal(again.hidden_state, torch.zeros_like(again.hidden_state))
