"""Sessions of a service."""

import threading

import pytest

from operant.language.configs import ModelOptions
from operant.language.engines.protocol import Completion, Sampling
from operant.scale import service as module
from operant.scale.batches import Datum
from operant.scale.service import Service, UnknownError, shortened
from operant.scale.trainer import Adam

TOKENS = [1, 21, 22, 15]
BATCH = [Datum(TOKENS[:-1], TOKENS[1:], weights=[1.0] * 3)]


@pytest.fixture
def service(tmp_path):
    found = Service(ModelOptions(model="tiny"), tmp_path / "states")
    yield found
    found.close()


def learn(service, model):
    service.trainer(model).forward_backward(BATCH, "cross_entropy")
    service.trainer(model).optim_step(Adam(learning_rate=0.05))


def test_models_do_not_touch_each_other(service):
    for name in ("a:train:0", "b:train:0"):
        service.create(name, base="tiny", rank=2)
    learn(service, "a:train:0")
    losses = [service.trainer(name).forward(BATCH, "cross_entropy").loss for name in ("a:train:0", "b:train:0")]
    assert losses[0] < losses[1]


def test_samples_are_those_of_the_published_weights(service):
    service.create("a:train:0", base="tiny", rank=2)
    address = service.publish("a:train:0", "first")
    greedy = {"prompt": TOKENS, "count": 1, "sampling": Sampling(3, temperature=0.0), "score_prompt": True}
    before = service.sample(address, **greedy)
    base = service.sample(None, **greedy)
    assert before.prompt_log_probs.tolist() == pytest.approx(base.prompt_log_probs.tolist(), abs=1e-5)
    learn(service, "a:train:0")
    assert service.sample(address, **greedy).prompt_log_probs.equal(before.prompt_log_probs)
    after = service.sample(service.publish("a:train:0", "second"), **greedy)
    assert after.prompt_log_probs.sum() > before.prompt_log_probs.sum()


def test_the_base_is_the_same_for_every_seed_of_an_adapter(service):
    service.create("a:train:0", base="tiny", rank=2, seed=5)
    address = service.publish("a:train:0", "first")  # an adapter that began at zero has no effect
    ask = {"prompt": TOKENS, "count": 1, "sampling": Sampling(3, temperature=0.0), "score_prompt": True}
    base, mine = (service.sample(each, **ask).prompt_log_probs for each in (None, address))
    assert mine.tolist() == pytest.approx(base.tolist(), abs=1e-5)
    trained = service.trainer("a:train:0").forward(BATCH, "cross_entropy").logprobs[0]
    assert trained.tolist() == pytest.approx(base.tolist(), abs=1e-5)


def test_a_seed_repeats_and_none_does_not(service):
    ask = {"prompt": TOKENS, "count": 4, "sampling": Sampling(8)}
    assert service.sample(None, **ask, seed=0) == service.sample(None, **ask, seed=0)
    assert service.sample(None, **ask).completions != service.sample(None, **ask).completions


def test_a_state_outlives_the_service(service, tmp_path):
    service.create("a:train:0", base="tiny", rank=2)
    learn(service, "a:train:0")
    address = service.save("a:train:0", "one")
    loss = service.trainer("a:train:0").forward(BATCH, "cross_entropy").loss
    other = Service(ModelOptions(model="tiny"), tmp_path / "states")
    assert other.rank_of(address) == 2
    other.create("b:train:0", base="tiny", rank=2)
    other.load("b:train:0", address, optimizer=True)
    assert other.trainer("b:train:0").forward(BATCH, "cross_entropy").loss == loss
    other.close()


@pytest.mark.parametrize(("options", "seed"), [(ModelOptions(model="tiny-qwen3"), 0), (ModelOptions(model="tiny"), 1)])
def test_saved_data_of_another_base_are_rejected(service, tmp_path, options, seed):
    """The other base has another name, or the same name and other weights."""
    service.create("a:train:0", base="tiny", rank=2)
    state, weights = service.save("a:train:0", "one"), service.publish("a:train:0", "first")
    other = Service(options, tmp_path / "states", seed=seed)
    other.create("b:train:0", base=options.model, rank=2)
    expected = f"belongs to the base model 'tiny' with weights .*, but the served one is '{options.model}' with weights"
    for call in (
        lambda: other.rank_of(state),
        lambda: other.rank_of(weights),
        lambda: other.load("b:train:0", state, optimizer=True),
        lambda: other.create_from("c:train:0", state, optimizer=True),
        lambda: other.require_weights(weights),
        lambda: other.sample(weights, TOKENS, 1, Sampling(2)),
    ):
        with pytest.raises(ValueError, match=expected):
            call()
    other.close()


def test_a_model_is_created_from_a_state_or_not_at_all(service):
    service.create("a:train:0", base="tiny", rank=2)
    learn(service, "a:train:0")
    state, weights = service.save("a:train:0", "one"), service.publish("a:train:0", "first")
    for wrong, message in {
        weights: "is not an address of saved weights; save_state",
        state.replace("one", "other"): "has no saved state",
    }.items():
        with pytest.raises(ValueError, match=message):
            service.create_from("b:train:0", wrong, optimizer=True)
    assert list(service.models) == ["a:train:0"]
    service.create_from("b:train:0", state, optimizer=True)
    assert service.trainer("b:train:0").steps == 1
    service.create_from("c:train:0", state, optimizer=False)
    assert service.trainer("c:train:0").steps == 0
    losses = [service.trainer(name).forward(BATCH, "cross_entropy").loss for name in service.models]
    assert losses[1:] == losses[:1] * 2


def test_weights_remain_after_a_crash_while_they_were_replaced(service):
    service.create("a:train:0", base="tiny", rank=2)
    address = service.publish("a:train:0", "first")
    folder = service.folder / "a-train-0" / module.SAMPLERS
    (folder / "first").rename(folder / ".first.old")
    assert service.sample(address, TOKENS, 1, Sampling(2)).completions


def test_models_of_a_session_are_released_with_those_still_to_be_created(service):
    service.create("b:train:0", base="tiny", rank=2)
    service.submit(service.create, "a:train:0", base="tiny", rank=2)
    service.result(service.submit(service.forget_session, "a")).result()
    assert list(service.models) == ["b:train:0"]


def test_unknown_ids_are_named(service):
    with pytest.raises(UnknownError, match="no model 'x'"):
        service.trainer("x")
    with pytest.raises(UnknownError, match="no weights 'tinker://x'"):
        service.sample("tinker://x", TOKENS, 1, Sampling(2))
    with pytest.raises(UnknownError, match="no request"):
        service.result("x")
    with pytest.raises(UnknownError, match="belongs to no model"):
        service.rank_of("tinker://a:train:0/weights/one")
    for address in (
        "a",
        "tinker://a/other/x",
        "tinker:///weights/x",
        "tinker://../../weights/x",
        "tinker://a/weights/..",
    ):
        with pytest.raises((ValueError, UnknownError)):
            service.rank_of(address)
    with pytest.raises(
        ValueError, match="the prompt has 4 tokens and its completion up to 4096, expected at most 2048"
    ):
        service.sample(None, TOKENS, 1, Sampling(4096))


def test_a_forgotten_model_no_longer_exists_but_its_named_weights_remain(service):
    service.create("a:train:0", base="tiny", rank=2)
    named, snapshot = service.publish("a:train:0", "first"), service.publish("a:train:0")
    service.forget("a:train:0")
    service.require_weights(named)
    with pytest.raises(UnknownError, match="was dropped"):
        service.require_weights(snapshot)
    with pytest.raises(UnknownError):
        service.trainer("a:train:0")


def test_named_weights_outlive_the_service(service, tmp_path):
    service.create("a:train:0", base="tiny", rank=2)
    learn(service, "a:train:0")
    address = service.publish("a:train:0", "first")
    greedy = {"prompt": TOKENS, "count": 1, "sampling": Sampling(3, temperature=0.0), "score_prompt": True}
    before = service.sample(address, **greedy)
    other = Service(ModelOptions(model="tiny"), tmp_path / "states")
    assert other.rank_of(address) == 2
    assert other.sample(address, **greedy).prompt_log_probs.equal(before.prompt_log_probs)
    other.close()
    learn(service, "a:train:0")
    assert service.publish("a:train:0", "first") == address
    assert not service.sample(address, **greedy).prompt_log_probs.equal(before.prompt_log_probs)


def test_the_number_of_snapshots_is_bounded(service, monkeypatch):
    monkeypatch.setattr(module, "MOST_SNAPSHOTS", 2)
    monkeypatch.setattr(module, "MOST_LOADED", 1)
    service.create("a:train:0", base="tiny", rank=2)
    first, *kept = (service.publish("a:train:0") for _ in range(3))
    with pytest.raises(UnknownError, match="keeps the last 2 snapshots of a model until the end"):
        service.sample(first, TOKENS, 1, Sampling(2))
    for address in kept:
        service.sample(address, TOKENS, 1, Sampling(2))
    for name in ("one", "two", "one"):
        service.sample(service.publish("a:train:0", name), TOKENS, 1, Sampling(2))
    assert len(service._loaded) == 1


def test_fetched_results_are_kept_a_while(service, monkeypatch):
    monkeypatch.setattr(module, "MOST_FETCHED", 2)
    names = [service.submit(int, number) for number in range(4)]
    for name in names[:3]:
        service.result(name).result()
        service.mark_fetched(name)
    assert [service.result(name).result() for name in names[1:]] == [1, 2, 3]
    with pytest.raises(UnknownError, match="keeps the last 2 results that were fetched and the last 10000 that were"):
        service.result(names[0])


def test_only_finished_results_are_dropped(service, monkeypatch):
    monkeypatch.setattr(module, "MOST_RESULTS", 2)
    opened = threading.Event()
    names = [service.submit(opened.wait) for _ in range(4)]
    opened.set()
    assert all(service.result(name).result() for name in names)
    kept = service.submit(int)
    assert list(service._results) == [names[-1], kept]
    with pytest.raises(UnknownError, match="the last 2 that were not; fetch results sooner"):
        service.result(names[0])


def test_prompts_are_checked(service):
    with pytest.raises(ValueError, match="the prompt has the id 1000000, expected 0 to"):
        service.sample(None, [1, 10**6], 1, Sampling(2))


def test_work_is_done_in_the_order_in_which_it_was_asked_for(service):
    done = []
    names = [service.submit(done.append, number) for number in range(20)]
    service.result(names[-1]).result()
    assert done == list(range(20))


def test_completions_end_after_a_stop_sequence():
    class Letters:
        def decode(self, ids, **_):
            return "".join(chr(i) for i in ids)

    given = Completion([97, 98, 99], [-1.0, -2.0, -3.0], True)
    assert shortened(given, ["b"], Letters()) == Completion([97, 98], [-1.0, -2.0], False)
    assert shortened(given, ["bc"], Letters()) == Completion([97, 98, 99], [-1.0, -2.0, -3.0], False)
    assert shortened(given, [97], Letters()) == Completion([97], [-1.0], False)
    assert shortened(given, ["x"], Letters()) is given
    assert shortened(given, [], Letters()) is given
    assert shortened(given, ["bc", 98], Letters()) == Completion([97, 98], [-1.0, -2.0], False)


def test_stop_sequences_of_long_completions_are_found_in_few_steps():
    decoded = []

    class Letters:
        def decode(self, ids, **_):
            decoded.append(len(ids))
            return "".join(chr(i) for i in ids)

    given = Completion([97, 98] * 5000, [-1.0] * 10_000, True)
    assert shortened(given, ["x"], Letters()) is given
    assert decoded == [10_000]
    assert len(shortened(given._replace(ids=[*given.ids[:9000], 120, *given.ids[9001:]]), ["x"], Letters()).ids) == 9001
    assert len(decoded) < 30
