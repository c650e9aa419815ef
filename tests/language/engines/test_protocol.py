import pytest
import torch

from operant.language.engines import AheadEngine, Completion, NativeEngine, Sampling, ShardEngine


def test_defaults_sample_from_the_model_itself():
    sampling = Sampling(max_tokens=3)
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 0, 1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"temperature": -0.1}, "temperature must be at least 0 and finite, got -0.1"),
        ({"temperature": float("inf")}, "temperature must be at least 0 and finite, got inf"),
        ({"temperature": float("nan")}, "temperature must be at least 0 and finite, got nan"),
        ({"top_k": -1}, "top_k must be at least 0 and top_p in"),
        ({"top_p": 0.0}, "top_k must be at least 0 and top_p in"),
        ({"top_p": 1.5}, "top_k must be at least 0 and top_p in"),
    ],
)
def test_values_out_of_range_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**{"max_tokens": 4} | values)


def test_a_completion_is_what_was_drawn():
    ids, log_probs, truncated, version = Completion([5, 2], [-1.0, -0.5], False)
    assert (ids, log_probs, truncated, version) == ([5, 2], [-1.0, -0.5], False, 0)


def test_the_native_engine_follows_the_protocol(make_model):
    engine = NativeEngine(make_model())
    assert isinstance(engine, ShardEngine)
    assert not isinstance(engine, AheadEngine), "it samples from the model itself, so it lacks no weights"
    assert all(callable(getattr(engine, name)) for name in ("generate", "update", "close"))
    engine.reach()
    assert engine.version == 0
    engine.update(engine.model)
    assert engine.version == 1
    found = engine.generate([[3, 4], [5]], 2, Sampling(3), generator=torch.Generator())
    assert {completion.version for completions in found for completion in completions} == {1}
    engine.close()
    engine.close()
