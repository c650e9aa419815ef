"""What every run needs: folders, checkpoints, metrics, the training loop, rollouts, evaluation and statistics."""
