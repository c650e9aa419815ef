"""Shared by all runs: folders, checkpoints, metrics, the training loop, rollouts, evaluation and statistics."""
