"""Folders of runs, as training writes them."""

from operant.runtime.evaluation import Evaluation
from operant.runtime.metrics import RecordWriter
from operant.runtime.run import Run
from operant.runtime.settings import Settings
from operant.tabular.one_step import OneStepConfig


def make_run(path, scores, *, ended=True, metrics=0, **config):
    """Make a run of Q-learning; `scores [n][S]` are its evaluations, and every step has `metrics` records."""
    seeds = tuple(range(len(scores[0])))
    budget = 1000 * len(scores)
    settings = Settings(algorithm="q-learning", task="FrozenLake-v1", seeds=seeds, budget=budget)
    run = Run.create(path, settings, OneStepConfig(**config), command=["operant", "train", "q-learning"])
    writer = RecordWriter(run.evaluations_path)
    for i, row in enumerate(scores, 1):
        writer.write({"consumed": 1000 * i, **Evaluation.of([[score] * 20 for score in row]).record()})
    writer.close()
    writer = RecordWriter(run.metrics_path)
    for i in range(metrics):
        writer.write({"consumed": 10 * (i + 1), "rollout/episode_return": [float(i + s) for s in seeds]})
    writer.close()
    if ended:
        run.end_session("finished", budget)
    return run
