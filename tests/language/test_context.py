from types import SimpleNamespace

import pytest

from operant import api
from operant.language.context import Context, check_context
from operant.language.examples import Pair, Prompt, Ranking, Stepwise
from operant.language.models import LanguageModel
from operant.language.packing import Sample


@pytest.mark.parametrize(
    ("example", "max_tokens", "message"),
    [
        (Prompt([1] * 9, {}), 8, r"a prompt has 9 tokens and a completion may have 8, 17 together, but the model has "),
        (
            Prompt([1] * 17, {}),
            0,
            r"a prompt has 17 tokens .*positions for 16 .*--max-prompt-length or --max-completion-length",
        ),
        (Sample([1] * 9, [1] * 8), 0, "its completion has 8, 17 together"),
        (Pair([1] * 9, [1], [1] * 8), 0, "its completion has 8, 17 together"),
        (Ranking([1] * 9, [[1], [1] * 8], [1.0, 2.0]), 0, "its completion has 8, 17 together"),
        (Stepwise([1] * 9, [[1] * 4, [1] * 4], [1.0, 0.0]), 0, "its completion has 8, 17 together"),
    ],
)
def test_sequences_longer_than_the_context_are_named(make_model, example, max_tokens, message):
    model = make_model(max_position_embeddings=16)
    check_context([Prompt([1] * 8, {})], model, max_tokens=8)
    check_context([], model)
    with pytest.raises(ValueError, match=message):
        check_context([Prompt([1], {}), example], model, max_tokens=max_tokens)


def test_what_a_reward_model_has_no_positions_for_is_cut_or_left_out(make_model, characters, caplog):
    model = make_model(max_position_embeddings=8)
    context, bos = Context(model), characters.bos_token_id
    assert context.fit([bos, 5, 6], [7] * 5) == Sample([bos, 5, 6], [7] * 5)
    assert not caplog.records
    assert context.fit([bos, 5, 6, 9], [7] * 5) == Sample([bos, 6, 9], [7] * 5)
    assert context.fit([5, 6, 9, 10], [7] * 5) == Sample([6, 9, 10], [7] * 5)
    assert context.fit([bos, 5, 6], [7] * 7) is None
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "A prompt has 4 tokens of the reward model and its answer 5, but it has positions for 8"
    ]


def test_a_model_without_a_limit_takes_any_length(make_model, monkeypatch):
    model = make_model()
    assert model.context == 512
    monkeypatch.setattr(LanguageModel, "config", SimpleNamespace())
    assert model.context is None
    check_context([Sample([1] * 9, [1] * 10_000)], model)


def test_the_context_of_gpt2_has_another_name_in_its_configuration(make_model):
    assert make_model("gpt2", max_position_embeddings=16).context == 16


@pytest.mark.parametrize("algorithm", ["sft", "grpo", "dpo", "rlhf", "reward-model"])
def test_a_run_that_cannot_fit_fails_before_it_starts(algorithm, make_network, characters, tmp_path):
    make_network(max_position_embeddings=8).save_pretrained(tmp_path / "short")
    characters.save_pretrained(tmp_path / "short")
    with pytest.raises(ValueError, match=r"but the model has positions for 8 \(max_position_embeddings\)"):
        api.train(
            algorithm,
            "preference",
            budget=8,
            run=tmp_path / "run",
            progress="silent",
            model=str(tmp_path / "short"),
            train_examples=20,
            held_out=4,
        )


def test_a_reward_model_with_a_shorter_context_than_the_policy(make_network, model_folder, characters, tmp_path):
    make_network(max_position_embeddings=40).save_pretrained(tmp_path / "short")
    characters.save_pretrained(tmp_path / "short")
    common = {"budget": 8, "progress": "silent", "train_examples": 20, "held_out": 4}
    reward = tmp_path / "reward"
    api.train(
        "reward-model", "preference", run=reward, model=str(tmp_path / "short"), max_completion_length=20, **common
    )
    with pytest.raises(ValueError, match=r"but the reward model has positions for 40"):
        api.train(
            "rlhf",
            "preference",
            run=tmp_path / "run",
            model=model_folder,
            reward_model=str(reward),
            max_completion_length=30,
            **common,
        )
