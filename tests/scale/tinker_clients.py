"""Programs that use a service of the Tinker API, run by test_tinker_server in a separate process.

The SDK leaves sockets to the garbage collector, which pytest would report as faults of other tests.
"""

import math
import os
import sys
import tempfile

import httpx2 as httpx
import pytest
import tinker
from tinker import types

from operant.language.engines.protocol import Sampling
from operant.scale.trainer import Adam, Datum, connect

TOKENS = [1, 21, 22, 15, 23, 33, 21, 25]


def datum(**columns):
    return Datum(TOKENS[:-1], TOKENS[1:], **columns)


def step(trainer):
    answers = trainer.sample([TOKENS[:3], TOKENS[:4]], 2, Sampling(max_tokens=3), seed=7)
    flat = [answer for group in answers for answer in group]
    data = [datum(logprobs=[-1.0] * 7, advantages=[0.5] * 7), datum(logprobs=[-2.0] * 7, advantages=[-0.5] * 7)]
    found = trainer.forward_backward(data, "ppo", {"clip_high_threshold": 1.3})
    return flat, found, trainer.optim_step(Adam(learning_rate=1e-2))


def a_loop_gives_the_same_here_and_there(remote, folder):
    """Call the same functions on both; only the address differs."""
    with connect(model="tiny", lora_r=4, states=folder) as local:
        for _ in range(3):
            (_, mine, report), (_, theirs, other) = step(local), step(remote)
            assert mine.loss == pytest.approx(theirs.loss, rel=1e-6)
            assert report["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-6)
        for a, b in zip(mine.logprobs, theirs.logprobs, strict=True):
            assert a.tolist() == pytest.approx(b.tolist(), rel=1e-6)
        assert local.tokenizer.encode("12+3=") == remote.tokenizer.encode("12+3=")


def samples_come_from_the_present_weights(remote):
    """Check that one completion is the most probable after training on it."""
    for _ in range(30):
        remote.forward_backward([datum(weights=[1.0] * 7)], "cross_entropy")
        remote.optim_step(Adam(learning_rate=1e-2))
    (found,) = remote.sample([TOKENS[:4]], 1, Sampling(max_tokens=4, temperature=0.0))[0]
    assert found.ids == TOKENS[4:]
    assert found.truncated


def prompts_of_one_seed_get_different_answers(remote):
    """Check that an answer depends only on its seed and place, and that the first one is that of the seed itself."""
    asked = [TOKENS[:3]] * 3, 2, Sampling(max_tokens=6)
    found = remote.sample(*asked, seed=5)
    assert len({tuple(answer.ids) for group in found for answer in group}) == 6
    assert remote.sample(*asked, seed=5) == found
    assert remote.sample(asked[0][:1], *asked[1:], seed=5) == found[:1]


def status_of(model):
    """Return the status of the service's answer about a model."""
    head = {"X-Api-Key": os.environ["TINKER_API_KEY"]}
    return httpx.post(f"{sys.argv[1]}/api/v1/get_info", json={"model_id": model}, headers=head).status_code


def a_saved_state_continues(remote):
    step(remote)
    path = remote.save_state("half")
    after = step(remote)[1].loss
    former = remote._client.get_info().model_id
    with pytest.raises(tinker.RequestFailedError, match="has no saved state"):
        remote.load_state(path + "s")
    assert status_of(former) == 200
    remote.load_state(path)
    assert step(remote)[1].loss == pytest.approx(after, rel=1e-6)
    assert status_of(former) == 404, "a model that was replaced stays in memory"
    remote.load_state(path, optimizer=False)
    path = remote.save_state("half")
    with pytest.raises(tinker.RequestFailedError, match="already exists"):
        remote.save_state("half")
    assert remote.save_state("half", overwrite=True) == path
    assert path.startswith("tinker://")


def a_gradient_that_is_not_finite_is_skipped(remote):
    before = remote.forward([datum(weights=[1.0] * 7)], "cross_entropy").loss
    found = remote.forward_backward([datum(logprobs=[-1.0] * 7, advantages=[math.nan] * 7)], "ppo")
    assert math.isnan(found.loss)
    report = remote.optim_step(Adam(learning_rate=1e-2))
    assert report["skipped"] == 1.0
    assert math.isnan(report["gradient_norm"])
    assert remote.forward([datum(weights=[1.0] * 7)], "cross_entropy").loss == before


def a_loop_for_the_service_runs_as_it_is(address):
    """Run the loop of the documentation, which uses only the SDK."""
    service = tinker.ServiceClient(base_url=address)
    client = service.create_lora_training_client(base_model="tiny", rank=4).result()
    tokens = client.get_tokenizer().encode("7*8=56")
    data = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    losses = []
    for _ in range(12):
        forward = client.forward_backward([data], "cross_entropy")
        update = client.optim_step(types.AdamParams(learning_rate=1e-2))
        losses.append(forward.result().metrics["loss:sum"])
        assert update.result().metrics["skipped"] == 0.0
    assert losses[-1] < 0.2 * losses[0]
    sampler = client.save_weights_and_get_sampling_client().result()
    prompt = types.ModelInput.from_ints(tokens[:-2])
    params = types.SamplingParams(max_tokens=20, temperature=0.0, stop=[tokens[-2]])
    answer = sampler.sample(prompt, 2, params).result()
    path = client.save_weights_for_sampler("named").result().path
    named = service.create_sampling_client(model_path=path)
    assert named.sample(prompt, 2, params).result().sequences[0].tokens == answer.sequences[0].tokens
    with pytest.raises(tinker.APIStatusError, match="ttl_seconds is not supported here"):
        client.save_weights_for_sampler("other", ttl_seconds=3600).result()
    assert [s.tokens for s in answer.sequences] == [[tokens[-2]]] * 2
    assert [s.stop_reason for s in answer.sequences] == ["stop"] * 2
    scores = sampler.compute_logprobs(prompt).result()
    assert scores[0] is None
    assert all(score < 0 for score in scores[1:])

    def square(data, logprobs):
        loss = sum((each**2).sum() for each in logprobs)
        return loss, {"custom": loss.item()}

    assert client.forward_backward_custom([data], square).result().metrics["custom"] > 0
    client.optim_step(types.AdamParams()).result()
    with pytest.raises(tinker.UnprocessableEntityError, match="datum 0 has weights, which is not supported for ppo"):
        client.forward_backward([data], "ppo").result()
    bare = types.Datum(model_input=data.model_input, loss_fn_inputs={"target_tokens": tokens[1:]})
    with pytest.raises(tinker.RequestFailedError, match="datum 0 has no logprobs, which ppo needs"):
        client.forward_backward([bare], "ppo").result()
    service.close("success").result()


def models_that_are_not_served_are_named(address):
    with pytest.raises(tinker.UnprocessableEntityError, match="'other' is not served here; 'tiny' is"):
        connect(address, model="other")


if __name__ == "__main__":
    service = sys.argv[1]
    for program in (
        a_loop_gives_the_same_here_and_there,
        samples_come_from_the_present_weights,
        prompts_of_one_seed_get_different_answers,
        a_saved_state_continues,
        a_gradient_that_is_not_finite_is_skipped,
    ):
        with connect(service, lora_r=4) as remote, tempfile.TemporaryDirectory() as folder:
            program(remote, *([folder] if program is a_loop_gives_the_same_here_and_there else []))
    a_loop_for_the_service_runs_as_it_is(service)
    models_that_are_not_served_are_named(service)
