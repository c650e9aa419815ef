import pytest

from operant.runtime.budget import (
    LEAST_LEFT,
    FixedRollouts,
    PlansSteps,
    iterations,
    remaining,
    require_budget,
    scheduled,
    whole_rollouts,
)


def test_a_budget_leaves_something_to_learn():
    require_budget(1)
    require_budget(11, learning_starts=10)
    with pytest.raises(ValueError, match="budget must be at least 1 environment step, got 0"):
        require_budget(0)
    with pytest.raises(ValueError, match="budget must be at least 1 move, got -3"):
        require_budget(-3, unit="move")
    with pytest.raises(ValueError, match=r"must be less than the budget of 10 environment steps, got 10: .* raise the"):
        require_budget(10, learning_starts=10)


def test_the_remaining_budget_falls_from_one_and_stays_positive():
    assert [remaining(used, 8) for used in (0, 2, 6)] == [1.0, 0.75, 0.25]
    assert remaining(8, 8) == remaining(9, 8) == LEAST_LEFT > 0


@pytest.mark.parametrize(("schedule", "expected"), [("constant", [0.5, 0.5, 0.5]), ("linear", [0.5, 0.25, 0.05])])
def test_a_schedule_is_constant_or_falls_with_what_is_left_down_to_its_least(schedule, expected):
    assert [scheduled(0.5, schedule, left, least=0.1) for left in (1.0, 0.5, 0.01)] == expected


def test_the_last_iteration_may_exceed_the_budget():
    assert [iterations(budget, 4) for budget in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]


def test_rollouts_are_complete_and_there_is_at_least_one():
    assert [whole_rollouts(budget, 4) for budget in (-5, 0, 1, 4, 5)] == [4, 4, 4, 4, 8]


def test_a_configuration_says_how_many_steps_training_uses():
    class Config(FixedRollouts):
        num_envs, num_steps = 2, 8

    assert isinstance(Config(), PlansSteps)
    assert not isinstance(object(), PlansSteps)
    assert Config().rollout_steps == 16
    assert Config().planned_steps(40) == 48
