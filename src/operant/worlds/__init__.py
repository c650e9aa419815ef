"""Planning, and learned models."""
