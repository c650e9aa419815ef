"""Packages with environments are found by the ids that they register, and symbols become separate inputs."""

import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

import operant
from operant.envs import Features, NoisyTV, check_batch_env, make, start
from operant.envs.checks import saying_once
from operant.envs.packages import PACKAGES, module_of, packages_of, with_symbols

ROOMS = "MiniGrid-MultiRoom-N4-S5-v0"
CELLS = spaces.Box(0, 255, (2, 2, 3), np.uint8)


def spec(entry_point):
    return EnvSpec("Some-v0", entry_point=entry_point)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        (ROOMS, "minigrid"),
        ("BabyAI-GoToLocal-v0", "minigrid"),
        ("ALE/Pong-v5", "ale_py"),
        ("CartPole-v1", ""),
        ("MyMiniGrid-v0", ""),
    ],
)
def test_ids_name_their_package(name, module):
    assert module_of(name) == module


def test_entry_points_name_the_packages_that_they_need():
    assert packages_of(spec("minigrid.envs:MultiRoomEnv")) == [PACKAGES["minigrid"]]
    assert packages_of(spec("gymnasium.envs.mujoco.hopper_v5:HopperEnv")) == [PACKAGES["mujoco"]]
    assert packages_of(spec("gymnasium.envs.classic_control.cartpole:CartPoleEnv")) == []


def test_symbols_are_counted_and_other_parts_stay():
    space = spaces.Dict(image=CELLS, direction=spaces.Discrete(4))
    seen = with_symbols(space, spec("minigrid.envs:Rooms"))
    assert seen["direction"] == spaces.Discrete(4)
    assert seen["image"].nvec[1, 0].tolist() == [11, 6, 4]
    assert seen["image"].shape == CELLS.shape
    assert seen.contains({"image": np.full((2, 2, 3), 3, np.uint8), "direction": 1})
    assert not seen.contains({"image": np.full((2, 2, 3), 4, np.uint8), "direction": 1})


@pytest.mark.parametrize(
    ("space", "entry_point"),
    [
        (spaces.Dict(image=CELLS), "other.envs:Rooms"),
        (spaces.Dict(frame=CELLS), "minigrid.envs:Rooms"),
        (spaces.Dict(image=spaces.Box(0, 255, (4, 8, 8), np.uint8)), "minigrid.envs:Rooms"),
        (CELLS, "minigrid.envs:Rooms"),
    ],
    ids=str,
)
def test_other_observations_stay(space, entry_point):
    assert with_symbols(space, spec(entry_point)) is space


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(ModuleNotFoundError, match=rf"'{ROOMS}' needs the .*'minigrid'.* pip install \"operant\[minigr"):
        make(ROOMS, 1, [0])


@pytest.fixture
def rooms():
    pytest.importorskip("minigrid")
    return ROOMS


def test_a_cell_is_its_object_color_and_state(rooms):
    env = make(rooms, 1, [0])
    features = Features.of(env.observation_space, env.action_space)
    assert features.shape == (7 * 7 * (11 + 6 + 4) + 4,)
    obs = env.reset()
    encoded = features.encode(obs)[0]
    assert encoded.sum() == 7 * 7 * 3 + 1
    cells = encoded[features.slices["image"]].view(7, 7, 21)
    for part, (first, last) in enumerate(((0, 11), (11, 17), (17, 21))):
        assert torch.equal(cells[..., first:last].argmax(-1), obs["image"][0, ..., part])
    env.close()


def test_the_contract_holds_in_rooms_with_a_television(rooms):
    check_batch_env(lambda: make(rooms, 2, (3, 5)), seeds=(3, 5), steps=40)
    check_batch_env(lambda: NoisyTV(make(rooms, 2, (3, 5)), action=6), seeds=(3, 5), steps=40)


def test_the_action_done_changes_the_screen_alone(rooms):
    env = NoisyTV(make(rooms, 1, [0]), action=6)
    start(env, [0])
    before = env.reset()
    step = env.step(torch.tensor([6])).obs
    assert torch.equal(step["image"], before["image"])
    assert not torch.equal(step["screen"], before["screen"])


def test_dropped_inputs_and_old_versions_are_reported_once_in_a_run(rooms, caplog):
    for _ in range(2):
        caplog.clear()
        with saying_once():
            for seed in range(3):
                make(rooms, 1, [seed]).close()
        assert [record.getMessage() for record in caplog.records] == [
            f"{rooms} is an old version, which is a separate task; the newest is MiniGrid-MultiRoom-N4-S5-v1",
            "the text in observations is dropped: mission",
        ]


def test_an_old_version_that_is_a_separate_task_is_made(rooms):
    assert make(rooms, 1, [0]).spec.kwargs["maxNumRooms"] == 6
    assert make("MiniGrid-MultiRoom-N4-S5-v1", 1, [0]).spec.kwargs["maxNumRooms"] == 4


def test_the_command_of_the_documentation_trains(rooms, tmp_path):
    trained = operant.train(
        "ppo", rooms, bonus="episodic", budget=2048, seeds=2, run=tmp_path / "run", evaluate_episodes=2
    )
    config = trained.run.settings
    assert config.wrappers == ("operant.explore:Episodic(gamma=0.99)",)
    assert trained.experiment.learner.config.hidden_sizes == (128, 128)
    assert trained.experiment.learner.config.reward_channels["intrinsic"]["weight"] == 0.05
