import numpy as np
import pytest
import torch

from operant.envs import make
from operant.envs.infos import final_infos, gather, metric, scalars

CPU = torch.device("cpu")


def test_scalars_are_numbers_and_booleans_that_are_not_reported_elsewhere():
    info = {
        "is_success": np.bool_(True),
        "distance": np.float32(0.5),
        "zero_dim": np.array(3),
        "steps": 7,
        "name": "x",
        "vector": np.zeros(2),
        "episode": {"r": 1.0},
        "TimeLimit.truncated": True,
        "nothing": None,
    }
    assert scalars(info) == {"is_success": 1.0, "distance": 0.5, "zero_dim": 3.0, "steps": 7.0}


def test_infos_are_merged_as_gymnasium_does_and_read_where_episodes_ended():
    info = gather([{"a": 1.0}, None, {"a": 3.0, "b": 0.0}])
    assert info["_a"].tolist() == [True, False, True]
    told = final_infos(info, np.array([True, True, False]), CPU)
    assert told is not None
    assert set(told) == {"a"}
    assert told["a"][0] == 1.0
    assert told["a"][1:].isnan().all()
    assert final_infos(info, np.zeros(3, np.bool_), CPU) is None
    assert final_infos({"lives": np.ones(3)}, np.ones(3, np.bool_), CPU) is None


def test_success_has_a_separate_metric():
    assert metric("is_success") == metric("success") == "rollout/success_rate"
    assert metric("x_position") == "rollout/info/x_position"


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_last_info_of_an_episode_comes_with_the_step_that_ends_it(vectorization):
    env = make("FrozenLake-v1", 4, [0], vectorization=vectorization)
    env.reset()
    seen = 0
    for _ in range(30):
        step = env.step(torch.tensor([1, 1, 2, 2]))
        ended = step.terminated | step.truncated
        assert (step.infos is None) == (not ended.any())
        if step.infos is not None:
            assert torch.equal(step.infos["prob"].isnan(), ~ended)
            assert step.infos["prob"][ended][0] == pytest.approx(1 / 3)
            seen += 1
    assert seen > 2
    env.close()
