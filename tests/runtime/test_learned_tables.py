import pytest

from operant import api


def test_networks_have_no_table(tmp_path):
    flags = {"seeds": 1, "budget": 64, "num_envs": 1, "num_steps": 64, "evaluate_episodes": 1, "progress": "silent"}
    trained = api.train("ppo", "CartPole-v1", run=tmp_path / "run", **flags)
    for name in ("q", "values", "policy"):
        with pytest.raises(ValueError, match=f"ppo is not a tabular method, so there is no `{name}`"):
            getattr(trained, name)
    trained.close()
