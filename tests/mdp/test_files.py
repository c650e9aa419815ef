"""Models are read back bit for bit; other files raise an error, and none of their content is run."""

import dataclasses
import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.mdp import MDP, examples, files, load, save


def random_model(seed):
    rng = np.random.default_rng(seed)
    states, actions = (int(n) for n in rng.integers(1, 6, 2))
    probabilities = rng.dirichlet(np.ones(states), (states, actions))
    rewards = rng.normal(size=probabilities.shape) * 10.0 ** rng.integers(-300, 300)
    s, a, successor = np.indices(probabilities.shape).reshape(3, -1)
    ends = rng.random(s.size) < 0.2
    table = {"s": s, "a": a, "s'": successor, "p": probabilities.ravel(), "r": rewards.ravel(), "terminates": ends}
    start = rng.dirichlet(np.ones(states))
    limit = None if rng.random() < 0.5 else int(rng.integers(1, 100))
    return MDP.from_table(table, states=states, actions=actions, start=start, max_steps=limit)


def assert_equal(mdp, other):
    for field in dataclasses.fields(MDP):
        one, two = getattr(mdp, field.name), getattr(other, field.name)
        assert type(one) is type(two)
        if isinstance(one, np.ndarray):
            assert one.dtype == two.dtype
            assert one.tobytes() == two.tobytes()
        else:
            assert one == two


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such folder for the model: '.*/nowhere'$"):
        save(random_model(0), tmp_path / "nowhere" / "model.json")


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_names_are_kept(suffix, tmp_path):
    model = dataclasses.replace(
        MDP.from_table([[0, 0, 1, 1.0, 1.0]]), state_names=["früh", "late"], action_names=np.array(["wait"])
    )
    save(model, tmp_path / f"named{suffix}")
    again = load(tmp_path / f"named{suffix}")
    assert_equal(again, model)
    assert (again.state_names, again.action_names) == (("früh", "late"), ("wait",))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), suffix=st.sampled_from([".json", ".npz"]))
def test_round_trips_are_exact(tmp_path_factory, seed, suffix):
    path = tmp_path_factory.mktemp("models") / f"model{suffix}"
    mdp = random_model(seed)
    save(mdp, path)
    assert_equal(load(path), mdp)
    save(random_model(seed + 1), str(path))
    assert_equal(load(str(path)), random_model(seed + 1))


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_unsorted_and_repeated_successors_stay_as_they_are(tmp_path, suffix):
    mdp = examples.random_model(4, 2, 5, seed=0, termination=0.2, infeasible=0.3)
    save(mdp, tmp_path / f"model{suffix}")
    assert_equal(mdp, load(tmp_path / f"model{suffix}"))


def test_a_lake_keeps_its_terminal_states_and_its_limit(tmp_path):
    lake = MDP.from_gymnasium("FrozenLake-v1")
    for name in ("lake.json", "lake.npz"):
        save(lake, tmp_path / name)
        assert_equal(load(tmp_path / name), lake)


def test_json_can_be_written_by_hand(tmp_path):
    path = tmp_path / "model.json"
    content = {"format": "operant.mdp", "schema": 1, "states": 2, "actions": 1, "start": 0}
    path.write_text(json.dumps({**content, "columns": ["s", "a", "s'", "p", "r"], "transitions": [[0, 0, 1, 1, 5]]}))
    mdp = load(path)
    assert mdp.terminal.tolist() == [False, True]
    assert mdp.rewards.tolist() == [5]
    assert mdp.max_steps is None


HEAD = {"format": "operant.mdp", "schema": 1, "states": 1, "actions": 1, "transitions": [[0, 0, 0, 1.0, 0.0, False]]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, 'it lacks "format": "operant.mdp"'),
        ({"schema": 2}, "it has schema 2, but this version of operant reads 1"),
        ({"schema": None}, "it has schema None"),
        ({"extra": 1}, "it has the unknown entry 'extra'"),
        ({"states": None}, "states is None, expected an int"),
        ({"states": 1.0}, "states is 1.0, expected an int"),
        ({"actions": [1]}, r"actions is \[1\], expected an int"),
        ({"states": 10**6}, "more than 100000; use .npz"),
        ({"states": 10**30}, "more than 64-bit indices can address"),
        ({"columns": ["a", "s"]}, "zip"),
        ({"columns": 7}, "not iterable"),
        ({"transitions": []}, "table has the columns"),
        ({"transitions": 3}, "must be an iterable"),
        ({"transitions": {"0": 1}}, "zip"),
        ({"transitions": [[0, 0, 0, "1", 0.0, False]]}, "column p is an array of .*, expected real numbers"),
        ({"transitions": [[0, 0, 0, None, 0.0, False]]}, "column p is an array of object"),
        ({"transitions": [[0, 0, 0, 10**400, 0.0, False]]}, "column p is an array of object"),
        ({"transitions": [[0, 0, 0, 1.0, 0.0, 2]]}, "column terminates number 0 is 2"),
        ({"transitions": [[0, 0, 0, 0.9, 0.0, False]]}, "state 0, action 0: the probabilities sum to 0.9"),
        ({"start": "first"}, "start is 'first', expected an index"),
        ({"start": {"0": 1}}, "start is an array of object"),
        ({"start": [0.5]}, "start sums to 0.5"),
        ({"max_steps": -1}, "max_steps is -1"),
        ({"max_steps": True}, "max_steps is True, expected an int"),
    ],
)
def test_json_that_is_no_model_is_rejected(tmp_path, changes, message):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(HEAD))
    load(path)
    path.write_text(json.dumps(HEAD | changes))
    with pytest.raises(ValueError, match=f"model.json is not a model: .*{message}"):
        load(path)


@pytest.mark.parametrize("text", ["", "[", "[]", "1", '{"format": NaN}', "[" * 100_000, "\ufeff{}", '{"a": 1} {}'])
def test_text_that_is_no_model_is_rejected(tmp_path, text):
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a model"):
        load(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_know_are_rejected(tmp_path, number):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(HEAD).replace("1.0", number))
    with pytest.raises(ValueError, match=f"it contains {number}, expected finite numbers"):
        load(path)


def test_json_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "model.json"
    monkeypatch.setattr(files, "JSON_ROWS", 3)
    with pytest.raises(ValueError, match=r"64 transitions or state-action pairs are more than 3; use .npz"):
        save(MDP.from_gymnasium("FrozenLake-v1", is_slippery=False), path)
    assert not path.exists()
    monkeypatch.setattr(files, "JSON_BYTES", 10)
    path.write_text(json.dumps(HEAD))
    with pytest.raises(ValueError, match="expected at most 10 in JSON"):
        load(path)


def npz(path, **changes):
    numbers = {"schema": 1, "states": 1, "actions": 1, "max_steps": 0}
    arrays = {"indptr": [0, 1], "successors": [0], "probabilities": [1.0], "rewards": [0.5], "terminates": [False]}
    content = {**numbers, **arrays, "start": [1.0], **changes}
    np.savez(path, **{name: np.asarray(value) for name, value in content.items() if value is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 9}, "it has schema 9, but this version of operant reads 1"),
        ({"states": 1.5}, "states is 1.5, expected an int"),
        ({"states": [1, 2]}, "size 1"),
        ({"states": 2**30}, r"indptr has shape \(2,\)"),
        ({"rewards": None}, "rewards is not a file in the archive"),
        ({"rewards": [np.nan]}, "state 0, action 0: the reward"),
        ({"rewards": [1j]}, "rewards is an array of complex128"),
        ({"start": [[1.0]]}, "start has shape"),
        ({"indptr": [0, 10**15]}, "indptr runs from 0 to 1000000000000000"),
        ({"max_steps": -5}, "max_steps is -5"),
    ],
)
def test_arrays_that_are_no_model_are_rejected(tmp_path, changes, message):
    load(npz(tmp_path / "good.npz"))
    with pytest.raises(ValueError, match=f"model.npz is not a model: .*{message}"):
        load(npz(tmp_path / "model.npz", **changes))


def test_python_objects_are_not_loaded(tmp_path):
    class Loud:
        def __reduce__(self):
            return (pytest.fail, ("code of the file was run",))

    with pytest.raises(ValueError, match="allow_pickle=False"):
        load(npz(tmp_path / "model.npz", rewards=np.array([Loud()], object)))


def test_compressed_arrays_are_not_unpacked(tmp_path):
    path = tmp_path / "model.npz"
    np.savez_compressed(path, indptr=np.zeros(10**6))
    with pytest.raises(ValueError, match=r"indptr.npy is compressed, so its size is unknown"):
        load(path)


def test_an_array_that_claims_to_be_larger_than_the_file_is_rejected(tmp_path):
    path = npz(tmp_path / "model.npz")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**45,)})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, header.getvalue() if name == "rewards.npy" else data)
    with pytest.raises(ValueError, match="is not a model"):
        load(path)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_damaged_file_is_rejected_or_reads_the_same(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    mdp = random_model(data.draw(st.integers(0, 99)))
    path = folder / data.draw(st.sampled_from(["model.npz", "model.json"]))
    save(mdp, path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        read = load(path)
    except ValueError:
        return
    if path.suffix == ".npz":  # each array has a checksum; a changed digit of JSON is another model
        assert_equal(read, mdp)


def test_a_zip_directory_that_points_before_the_file_is_rejected(tmp_path):
    path = npz(tmp_path / "model.npz")
    content = bytearray(path.read_bytes())
    content[-6:-2] = (2**31).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a model"):
        load(path)


def test_other_suffixes_are_rejected(tmp_path):
    for use in (load, lambda path: save(random_model(0), path)):
        with pytest.raises(ValueError, match=r"has the suffix '.pkl', expected .json or .npz"):
            use(tmp_path / "model.pkl")


def test_a_missing_file_is_missing(tmp_path):
    for name in ("model.json", "model.npz"):
        with pytest.raises(FileNotFoundError):
            load(tmp_path / name)
