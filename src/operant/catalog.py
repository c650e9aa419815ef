"""Every algorithm, named once.

Imports nothing, so that `operant list` and `operant --help` answer at once; the command line, the documentation
and the web app read it.
"""

from dataclasses import dataclass, field
from typing import Literal

ActionKind = Literal["discrete", "continuous"]


@dataclass(frozen=True)
class Algorithm:
    """What there is to say about an algorithm before running it.

    Attributes:
        name: what it is called on the command line.
        title: its name in full.
        chapter: the package that holds it, under `operant`.
        family: what it learns: `prediction`, `value`, `policy`, `actor-critic`, ...
        model: whether it has a model of the world: `none`, `known` or `learned`.
        on_policy: whether it learns only from what its current policy did.
        actions: the kinds of action it can choose.
        idea: its key idea, in a sentence.
        paper: where it was published.
        module: the module that implements it.
        config: the name of its configuration in that module.
        learner: the name of its learner in that module.
        unit: what a budget counts.
        presets: named configurations, beside those that a task selects by itself.
    """

    name: str
    title: str
    chapter: str
    family: str
    model: Literal["none", "known", "learned"]
    on_policy: bool
    actions: tuple[ActionKind, ...]
    idea: str
    paper: str
    module: str
    config: str
    learner: str
    unit: str = "environment steps"
    presets: tuple[str, ...] = field(default=())


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        name="random",
        title="Random actions",
        chapter="tabular",
        family="none",
        model="none",
        on_policy=False,
        actions=("discrete",),
        idea="Every feasible action with equal probability: the baseline of every table.",
        paper="the uniform policy; Sutton and Barto 2018, example 4.1",
        module="operant.tabular.baseline",
        config="RandomConfig",
        learner="RandomAgent",
        presets=("paper",),
    ),
    Algorithm(
        name="monte-carlo-prediction",
        title="Monte Carlo prediction",
        chapter="tabular",
        family="prediction",
        model="none",
        on_policy=True,
        actions=("discrete",),
        idea="The value of a state is the mean of the returns that followed it; no bootstrapping, so no bias.",
        paper="Singh and Sutton 1996, Machine Learning 22",
        module="operant.tabular.episodic",
        config="MonteCarloPredictionConfig",
        learner="MonteCarloPrediction",
        presets=("paper",),
    ),
    Algorithm(
        name="n-step-td",
        title="n-step TD prediction",
        chapter="tabular",
        family="prediction",
        model="none",
        on_policy=True,
        actions=("discrete",),
        idea="A state moves towards n real rewards and the value of the state after them; n = 1 is TD(0).",
        paper="Sutton 1988, Machine Learning 3",
        module="operant.tabular.n_step",
        config="NStepTDConfig",
        learner="NStepTD",
        presets=("paper",),
    ),
    Algorithm(
        name="lambda-return",
        title="Offline λ-return prediction",
        chapter="tabular",
        family="prediction",
        model="none",
        on_policy=True,
        actions=("discrete",),
        idea="At the end of an episode, every state moves towards a weighted mean of its n-step returns.",
        paper="Watkins 1989, Learning from Delayed Rewards",
        module="operant.tabular.episodic",
        config="LambdaReturnConfig",
        learner="LambdaReturn",
        presets=("paper",),
    ),
    Algorithm(
        name="td-lambda",
        title="TD(λ) prediction",
        chapter="tabular",
        family="prediction",
        model="none",
        on_policy=True,
        actions=("discrete",),
        idea="Every TD error also moves the states that led to it, by traces that fade.",
        paper="Sutton 1988, Machine Learning 3; van Seijen et al. 2016, JMLR 17",
        module="operant.tabular.traces",
        config="TDLambdaConfig",
        learner="TDLambda",
        presets=("paper",),
    ),
    Algorithm(
        name="monte-carlo",
        title="Monte Carlo control",
        chapter="tabular",
        family="value",
        model="none",
        on_policy=True,
        actions=("discrete",),
        idea="An action is worth the mean of the returns that followed it; the policy is ε-greedy in that.",
        paper="Sutton and Barto 2018, section 5.4",
        module="operant.tabular.episodic",
        config="MonteCarloConfig",
        learner="MonteCarlo",
        presets=("paper",),
    ),
    Algorithm(
        name="q-learning",
        title="Q-learning",
        chapter="tabular",
        family="value",
        model="none",
        on_policy=False,
        actions=("discrete",),
        idea="Learns the values of the greedy policy from whatever it does, by the largest value of the next state.",
        paper="Watkins and Dayan 1992, Machine Learning 8",
        module="operant.tabular.one_step",
        config="OneStepConfig",
        learner="QLearning",
        presets=("paper", "decaying"),
    ),
    Algorithm(
        name="sarsa",
        title="SARSA",
        chapter="tabular",
        family="value",
        model="none",
        on_policy=True,
        actions=("discrete",),
        idea="Learns the values of the policy that explores, by the value of the action it takes next.",
        paper="Rummery and Niranjan 1994, CUED/F-INFENG/TR 166",
        module="operant.tabular.one_step",
        config="OneStepConfig",
        learner="Sarsa",
        presets=("paper", "decaying"),
    ),
    Algorithm(
        name="expected-sarsa",
        title="Expected SARSA",
        chapter="tabular",
        family="value",
        model="none",
        on_policy=True,
        actions=("discrete",),
        idea="SARSA with the mean over next actions instead of one of them, so with less noise.",
        paper="van Seijen et al. 2009, ADPRL",
        module="operant.tabular.one_step",
        config="OneStepConfig",
        learner="ExpectedSarsa",
        presets=("paper", "decaying"),
    ),
    Algorithm(
        name="double-q-learning",
        title="Double Q-learning",
        chapter="tabular",
        family="value",
        model="none",
        on_policy=False,
        actions=("discrete",),
        idea="Two tables, each valuing the actions that the other chooses: no maximisation bias.",
        paper="van Hasselt 2010, NeurIPS",
        module="operant.tabular.double",
        config="DoubleQLearningConfig",
        learner="DoubleQLearning",
        presets=("paper",),
    ),
    Algorithm(
        name="n-step-sarsa",
        title="n-step SARSA",
        chapter="tabular",
        family="value",
        model="none",
        on_policy=True,
        actions=("discrete",),
        idea="SARSA that looks n real rewards ahead before it bootstraps.",
        paper="Sutton and Barto 2018, section 7.2",
        module="operant.tabular.n_step",
        config="NStepSarsaConfig",
        learner="NStepSarsa",
        presets=("paper",),
    ),
    Algorithm(
        name="sarsa-lambda",
        title="SARSA(λ)",
        chapter="tabular",
        family="value",
        model="none",
        on_policy=True,
        actions=("discrete",),
        idea="Every TD error also moves the actions that led to it, by traces that fade.",
        paper="Rummery and Niranjan 1994; van Seijen et al. 2016, JMLR 17",
        module="operant.tabular.traces",
        config="SarsaLambdaConfig",
        learner="SarsaLambda",
        presets=("paper",),
    ),
    Algorithm(
        name="dyna-q",
        title="Dyna-Q",
        chapter="tabular",
        family="value",
        model="learned",
        on_policy=False,
        actions=("discrete",),
        idea="Between two steps, Q-learning from remembered ones: less experience, more computation.",
        paper="Sutton 1990, ICML",
        module="operant.tabular.dyna",
        config="DynaQConfig",
        learner="DynaQ",
        presets=("paper",),
    ),
    Algorithm(
        name="dyna-q-plus",
        title="Dyna-Q+",
        chapter="tabular",
        family="value",
        model="learned",
        on_policy=False,
        actions=("discrete",),
        idea="Dyna-Q with a bonus for actions that were not tried for long, to notice when the world changes.",
        paper="Sutton 1990, ICML",
        module="operant.tabular.dyna",
        config="DynaQPlusConfig",
        learner="DynaQPlus",
        presets=("paper",),
    ),
    Algorithm(
        name="prioritised-sweeping",
        title="Prioritised sweeping",
        chapter="tabular",
        family="value",
        model="learned",
        on_policy=False,
        actions=("discrete",),
        idea="Plans with a learned model where values would change most, backwards from what is new.",
        paper="Moore and Atkeson 1993, Machine Learning 13",
        module="operant.tabular.sweeping",
        config="PrioritisedSweepingConfig",
        learner="PrioritisedSweeping",
        presets=("paper",),
    ),
    Algorithm(
        name="r-max",
        title="R-max",
        chapter="tabular",
        family="value",
        model="learned",
        on_policy=False,
        actions=("discrete",),
        idea="What was tried too rarely is taken to be the best there can be, so exploring is planned.",
        paper="Brafman and Tennenholtz 2002, JMLR 3",
        module="operant.tabular.optimism",
        config="RMaxConfig",
        learner="RMax",
        presets=("paper",),
    ),
    Algorithm(
        name="mbie-eb",
        title="MBIE-EB",
        chapter="tabular",
        family="value",
        model="learned",
        on_policy=False,
        actions=("discrete",),
        idea="Plans with a learned model and a bonus that falls with the root of the number of tries.",
        paper="Strehl and Littman 2008, JCSS 74",
        module="operant.tabular.optimism",
        config="MBIEEBConfig",
        learner="MBIEEB",
        presets=("paper",),
    ),
    Algorithm(
        name="ppo",
        title="Proximal policy optimisation",
        chapter="control",
        family="actor-critic",
        model="none",
        on_policy=True,
        actions=("discrete", "continuous"),
        idea="Several epochs on each rollout; the clipped objective stops rewarding a ratio that has moved far enough.",
        paper="Schulman et al. 2017, arXiv:1707.06347",
        module="operant.control.ppo",
        config="PPOConfig",
        learner="PPO",
        presets=("paper", "zoo"),
    ),
)
"""In the order of the chapters."""


def find(name: str) -> Algorithm:
    """Return the algorithm called `name`.

    Raises:
        ValueError: there is none; the message names the nearest ones.
    """
    for algorithm in ALGORITHMS:
        if algorithm.name == name:
            return algorithm
    from difflib import get_close_matches  # noqa: PLC0415 - only for the message

    names = [algorithm.name for algorithm in ALGORITHMS]
    near = get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are: {', '.join(names)}"
    raise ValueError(f"no algorithm is called {name!r}; {hint}")


def supporting(kind: ActionKind) -> list[str]:
    """Return the names of the algorithms that can choose actions of a kind."""
    return [algorithm.name for algorithm in ALGORITHMS if kind in algorithm.actions]
