"""Run files: defaults, every refusal, and the way back into a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, strategies as st

from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.errors import InvalidInput
from covertfl.files.text import FORMATS, parse_toml
from covertfl.runs.settings import (
    QUEUE_ROUNDS,
    build_run,
    describe_run,
    find_change,
    format_run,
    read_run,
)
from covertfl.schemes.policies import PolicySection
from covertfl.schemes.registry import EARLIER, EARLIER_KINDS
from covertfl.schemes.scheduled import DecoySection
from covertfl.schemes.scheme import only_part
from tests.support.commands import Run, refuse
from tests.support.exchangeable_runs import BASES
from tests.support.small_runs import HORIZON, QUEUE, make_run, merge


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "participation", "batch_size"),
    [
        ('task = "digits"', [8, 10, 14], 5),
        ('task = "digits"\nfederation = { batch_size = 40 }', [8, 10, 14], 40),
        ('task = "toxicity"\nfederation = { participation = [5, 10, 20] }', [5, 10, 20], 40),
        ('task = "toxicity"\nfederation = { clients = 4 }', [1, 2, 4], 40),
        ('task = "toxicity"\nproblem = "sound/tracking-before"', [8, 11, 13], 40),
        ('task = "toxicity"\nproblem = "sound/states7"', [6, 8, 10, 11, 13, 14, 20], 40),
    ],
)
def test_participation_that_is_not_given_follows_from_the_problem(
    tmp_path: Path, text: str, participation: list[int], batch_size: int
) -> None:
    settings = read_run(write(tmp_path, text))
    federation = settings.sections.federation
    assert (federation.participation, federation.batch_size) == (participation, batch_size)
    again = build_run(parse_toml(format_run(settings, {}), "again"), "again", folder=tmp_path)
    assert again.sections.federation == federation


def test_the_defaults_are_the_main_experiment(tmp_path: Path) -> None:
    settings = read_run(write(tmp_path, 'task = "toxicity"\n'))
    problem, sections = settings.problem, settings.sections
    assert isinstance(problem, FiniteHorizon)
    assert (problem.rounds, problem.updates, settings.rounds, settings.seed) == (45, 16, 45, 0)
    assert problem.privacy_cost.tolist() == [1.8, 0.8, 0.3]
    federation = sections.federation
    assert (federation.clients, federation.participation) == (20, [8, 10, 14])
    assert (federation.acceptance, federation.min_share) == ("data", 0.25)
    assert (federation.algorithm, federation.batch_size) == ("fedavg", 40)
    assert (federation.optimizer.name, federation.optimizer.lr) == ("adam", 1e-3)
    data = sections.data
    assert (data.split, data.public_size, data.public_positive_share) == ("iid", 1.0, 0.1)
    assert sections.scheme == "scheduled"
    policy, decoy = (
        only_part(settings.parts, PolicySection),
        only_part(settings.parts, DecoySection),
    )
    assert (decoy.kind, decoy.gated) == ("public", "matched")
    assert (policy.kind, policy.refresh) == ("optimal", None)
    assert (sections.engine.kind, sections.engine.device) == ("simulated", "cpu")


BAD_FILES = [
    # text, what the sentence must say
    ("", ["task is missing", "toxicity", "digits"]),
    ("task", ["not valid TOML"]),
    ('task = "poetry"', ["task must be one of toxicity,", "'poetry'"]),
    ("task = 3", ["task must be one of", "3"]),
    ("format = 'x'", ["the format of a run must be 3", "'x'"]),
    ("format = 2", ["the format of a run must be 3", "got 2", "an older version"]),
    ("format = 4", ["the format of a run must be 3", "got 4", "update covertfl"]),
    ("seed = -1", ["seed must be at least 0", "-1"]),
    ("seed = 9223372036854775808", ["seed must be at most 9223372036854775807"]),
    ("seed = 1.0", ["seed must be a whole number", "1.0"]),
    ("seed = true", ["seed must be a whole number", "true"]),
    ('seed = "1"', ["seed must be a whole number", "'1'"]),
    ("rounds = 0", ["rounds must be at least 1", "0"]),
    ("[policy]\nkind = 'spga'\nlive = 'exact'", ["[policy] live needs refresh"]),
    ("[policy]\nkind = 'spga'\nrefresh = 9\nlive = 'lp'", ["[policy] live", "lp"]),
    ("updates = 0", ["updates must be at least 1", "0"]),
    ("rounds = 10000000000", ["rounds must be at most 1000000000"]),
    ("polcy = 3", ["unknown key polcy", "policy", "federation"]),
    ("split = 3", ["unknown key split", "allowed are task"]),
    ("[data]\nsplit = 'uneven'", ["[data] split must be", "dirichlet", "'uneven'"]),
    ("[data]\nsplit = { dirichlet = 0.0 }", ["[data] split must be", "positive", "0.0"]),
    ("[data]\nsplit = { dirichlet = inf }", ["[data] split must be", "inf"]),
    ("[data]\nsplit = { dirichlett = 1.0 }", ["[data] split must be", "dirichlet"]),
    ("[data]\nsplit = 0.3", ["[data] split must be", "0.3"]),
    ("[data]\npublic_size = 0", ["[data] public_size must be more than 0", "got 0"]),
    ("[data]\npublic_size = nan", ["[data] public_size must be", "nan"]),
    ("[data]\npublic_positive_share = 1.5", ["public_positive_share must be at most 1", "1.5"]),
    ("[data]\npublic_positive_share = nan", ["public_positive_share must be", "nan"]),
    ("[data]\npublic_classes = 0", ["[data] public_classes must be at least 1", "0"]),
    ("[data]\npublic_class_share = 0.9", ["public_class_share needs public_classes, which is not"]),
    ("[data]\npath = 3", ["[data] path must be text", "3"]),
    ("[data]\npath = ''", ["a path must name a file", "''"]),
    ('[data]\npath = "a\\u0000b"', ["a path must name a file"]),
    ("[data]\npath = '~nobody-at-all/x'", ["a path must name a file", "~nobody-at-all/x"]),
    ("data = 3", ["data must be a table of keys", "3"]),
    ("[federation]\nclients = 0", ["[federation] clients must be at least 1", "0"]),
    ("[federation]\nparticipation = 5", ["[federation] participation must be a list", "5"]),
    ("[federation]\nparticipation = []", ["[federation] participation must be a list with"]),
    ("[federation]\nparticipation = [5, -1, 9]", ["participation[1] must be at least 0", "-1"]),
    ("[federation]\nparticipation = [5, 'x', 9]", ["participation[1] must be a whole", "'x'"]),
    ("[federation]\nparticipation = [9, 5, 20]", ["must not decrease", "[9, 5, 20]"]),
    ("[federation]\nparticipation = [5, 10, 21]", ["at most clients = 20", "21"]),
    ("[federation]\nacceptance = 'luck'", ["acceptance must be one of data, model", "'luck'"]),
    ("[federation]\nmin_share = -0.1", ["[federation] min_share must be at least 0", "-0.1"]),
    ("[federation]\nmin_share = '1/4'", ["[federation] min_share must be a number", "'1/4'"]),
    ("[federation]\nalgorithm = 'fedprox'", ["algorithm must be one of fedavg, fedsgd"]),
    ("[federation]\nbatch_size = 2.5", ["batch_size must be a whole number", "2.5"]),
    ("[federation]\noptimizer = 'adam'", ["[federation] optimizer must be a table", "'adam'"]),
    ("[federation]\noptimizer = { name = 'lion' }", ["optimizer.name", "sgd, adam, adamw"]),
    ("[federation]\noptimizer = { lr = 0 }", ["optimizer.lr must be more than 0", "got 0"]),
    ("[federation]\noptimizer = { lr = inf }", ["optimizer.lr must be", "inf"]),
    ("[federation]\noptimizer = { rate = 1 }", ["unknown key optimizer.rate", "lr"]),
    ("[federation]\noptimizer = { momentum = 1.0 }", ["optimizer.momentum must be less than 1"]),
    ("[federation]\noptimizer = { momentum = 0.9 }", ["momentum needs name = sgd", "adam"]),
    ("[federation]\noptimizer = { weight_decay = -1 }", ["weight_decay must be at least 0"]),
    ("[policy]\nkind = 'best'", ["[policy] kind must be one of optimal, spga", "'best'"]),
    ("[policy]\nkind = 'file'", ["[policy] kind = file needs path"]),
    ("[policy]\npath = 'p.json'", ["[policy] path needs kind = file", "optimal"]),
    ("[policy]\nrefresh = 10", ["[policy] refresh needs kind = spga", "optimal"]),
    ("[policy]\nkind = 'spga'\nrefresh = 0", ["[policy] refresh must be at least 1", "0"]),
    ("[policy]\nkind = 'spga'\nlive = 'exact'", ["[policy] live needs refresh"]),
    ("[policy]\nkind = 'spga'\nrefresh = 9\nlive = 'lp'", ["[policy] live", "exact", "'lp'"]),
    ("scheme = 'secret'", ["scheme must be one of scheduled, exchangeable", "'secret'"]),
    ("scheme = 3", ["scheme must be one of scheduled, exchangeable", "3"]),
    ("problem = 3", ["problem must be text", "3"]),
    ("problem = 'sound/poem'", ["problem must be a preset", "sound/main", "sound/poem"]),
    ("problem = 'absent.toml'", ["or the path of a problem file", "absent.toml"]),
    ("problem = 'sound/main'\n[horizon]\nrounds = 3", ["problem must come from one place"]),
    ("problem = 'p.toml'\n[horizon]\nrounds = 3", ["problem must come from one place"]),
    ("problem = 'sound/queue'\n[policy]\nkind = 'random'", ["kind = random needs", "[queue]"]),
    ("problem = 'sound/queue'\n[policy]\nkind = 'minority'", ["kind = minority needs", "[queue]"]),
    ("arrivals = 'a.csv'", ["arrivals needs a [queue]", "[horizon]"]),
    ("updates = 3\nproblem = 'sound/queue'", ["updates needs a [horizon]"]),
    ("[oracle]\ntransition = 3", ["transition"]),
    ("oracle = 3", ["oracle must be a table of keys", "3"]),
    ("[horizon]\nrounds = 3\nupdates = 1", ["oracle"]),
    ("[decoy]\ncount = 2", ["[decoy] unknown key count", "allowed are kind, gated"]),
    ("[decoy]\nguard = 'client'", ["[decoy] unknown key guard"]),
    ("[decoy]\nkind = 'following'", ["[decoy] kind must be one of", "'following'"]),
    ("[decoy]\ngated = 1", ['[decoy] gated must be true, false or "matched"', "1"]),
    ("[decoy]\nkind = 4", ["[decoy] kind must be text", "4"]),
    ("[engine]\nkind = 'magic'", ["[engine] kind must be one of simulated, flower", "'magic'"]),
    ("[engine]\nmode = 'fast'", ["[engine] mode must be one of in-process"]),
    ("[engine]\nkind = 'flower'\nround_seconds = -1", ["round_seconds must be at least 0", "-1"]),
    ("[engine]\nround_seconds = 2", ["[engine] round_seconds needs kind = flower", "simulated"]),
    ("[engine]\ndevice = 0", ["[engine] device must be text", "0"]),
]


@pytest.mark.parametrize(("text", "said"), BAD_FILES, ids=[text for text, _ in BAD_FILES])
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, text: str, said: list[str]) -> None:
    if text and "task" not in text:
        text = f'task = "digits"\n{text}'
    path = write(tmp_path, text)
    with pytest.raises(InvalidInput) as caught:
        read_run(path)
    message = str(caught.value)
    assert "\n" not in message
    assert "pydantic" not in message.lower()
    for words in said:
        assert words in message
    assert "run.toml" in message or "absent.toml" in message


# --- earlier run files, and other schemes ---

NAMES_PRESET = "[policy] preset is no longer a key: name the preset at the top: problem"
NAMES_FILE = "[policy] problem is no longer a key: name the problem file at the top: problem"
NAMES_NUMBER = (
    "[policy] trajectories is no longer a key: "
    'write scheme = "exchangeable" and [exchangeable] trajectories'
)
NAMES_PIVOT = (
    '[decoy] pivot is no longer a key: write scheme = "exchangeable" and [exchangeable] pivot'
)
NAMES_POLICY = (
    "[policy] kind = exchangeable is no longer known: "
    'write scheme = "exchangeable" instead of a policy'
)
NAMES_REPLICA = (
    "[decoy] kind = replica is no longer known: "
    'write scheme = "exchangeable", which makes its replicas itself'
)
UNSCHEDULED = "belongs to scheme = scheduled, got scheme = exchangeable"
OTHERS = [
    # text, the sentence after the file's name
    ('[policy]\npreset = "sound/queue"', NAMES_PRESET),
    ('[policy]\nkind = "greedy"\npreset = "sound/poem"', NAMES_PRESET),
    ("[policy]\npreset = 3", NAMES_PRESET),
    ('[policy]\npreset = "sound/main"\nproblem = "p.toml"', NAMES_PRESET),
    ('problem = "sound/main"\n[policy]\npreset = "sound/main"', NAMES_PRESET),
    ('[policy]\nproblem = "p.toml"', NAMES_FILE),
    ("[policy]\ntrajectories = 2", NAMES_NUMBER),
    ('[policy]\nkind = "exchangeable"\ntrajectories = 4', NAMES_NUMBER),
    ('[policy]\nkind = "exchangeable"', NAMES_POLICY),
    ('[policy]\nkind = "exchangeable"\n[decoy]\nkind = "replica"', NAMES_POLICY),
    ('[decoy]\nkind = "replica"', NAMES_REPLICA),
    ('[decoy]\nkind = "replica"\npivot = "0.weight"', NAMES_PIVOT),
    ('[decoy]\npivot = "0.weight"', NAMES_PIVOT),
    # Also where the new key is there already.
    ('scheme = "exchangeable"\n[policy]\nkind = "exchangeable"', NAMES_POLICY),
    ('scheme = "exchangeable"\n[policy]\npreset = "sound/main"', NAMES_PRESET),
    ('scheme = "exchangeable"\n[decoy]\npivot = "0.weight"', NAMES_PIVOT),
    ('scheme = "exchangeable"\n[policy]\nkind = "optimal"', f"[policy] {UNSCHEDULED}"),
    ('scheme = "exchangeable"\n[policy]', f"[policy] {UNSCHEDULED}"),
    ('scheme = "exchangeable"\n[policy]\nrefresh = 5', f"[policy] {UNSCHEDULED}"),
    ('scheme = "exchangeable"\n[decoy]\nkind = "public"', f"[decoy] {UNSCHEDULED}"),
    ('scheme = "exchangeable"\n[decoy]\ngated = false', f"[decoy] {UNSCHEDULED}"),
    ('scheme = "exchangeable"\ndecoy = 3', f"[decoy] {UNSCHEDULED}"),
    *(
        (
            f"{scheme}[exchangeable]\ntrajectories = 2",
            "[exchangeable] belongs to scheme = exchangeable, got scheme = scheduled",
        )
        for scheme in ("", 'scheme = "scheduled"\n')
    ),
]


@pytest.mark.parametrize(("text", "sentence"), OTHERS, ids=[text for text, _ in OTHERS])
def test_keys_of_earlier_files_and_of_other_schemes_are_refused(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = write(tmp_path, f'task = "digits"\n{text}\n')
    with pytest.raises(InvalidInput) as caught:
        read_run(path)
    assert str(caught.value) == f"{path}: {sentence}"
    content = parse_toml(path.read_text(), "x")
    with pytest.raises(InvalidInput) as again:
        build_run(content, "run.toml", folder=tmp_path)
    assert str(again.value) == f"run.toml: {sentence}"


def test_every_earlier_key_has_its_refusal() -> None:
    said = {sentence for _, sentence in OTHERS}
    for (section, key), advice in EARLIER.items():
        assert f"[{section}] {key} is no longer a key: {advice}" in said
    for (section, key, value), advice in EARLIER_KINDS.items():
        assert f"[{section}] {key} = {value} is no longer known: {advice}" in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[policy]\npreset = "sound/queue"', NAMES_PRESET),
        ('[policy]\nkind = "exchangeable"', NAMES_POLICY),
        ('scheme = "exchangeable"\n[decoy]\nkind = "public"', f"[decoy] {UNSCHEDULED}"),
    ],
)
def test_the_command_says_what_to_write_instead(
    tmp_path: Path, run: Run, text: str, sentence: str
) -> None:
    path = write(tmp_path, f'task = "digits"\n{text}\n')
    result = run("train", path, "--out", tmp_path / "out")
    assert refuse(result, 2) == f"{path}: {sentence}"
    assert not (tmp_path / "out").exists()


def test_embeddings_need_a_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\[data\] path is needed"):
        read_run(write(tmp_path, 'task = "embeddings"'))


def test_a_missing_or_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.toml: no such file, a run file is needed"):
        read_run(tmp_path / "none.toml")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_run(tmp_path)


VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(10**40), 10**40),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from([10**400, -(10**400), "iid", "adam", "sound/main"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = [
    ("task",),
    ("seed",),
    ("format",),
    ("rounds",),
    ("updates",),
    ("arrivals",),
    ("keep",),
    *(("data", key) for key in ("split", "public_size", "public_classes", "path", "model")),
    *(("federation", key) for key in ("clients", "participation", "min_share", "log")),
    *(("federation", "optimizer", key) for key in ("name", "lr", "momentum", "what")),
    ("scheme",),
    ("problem",),
    *(("policy", key) for key in ("kind", "preset", "problem", "path", "refresh", "live")),
    *(("decoy", key) for key in ("kind", "pivot", "gated")),
    *(("exchangeable", key) for key in ("trajectories", "pivot")),
    *((section, "what") for section in ("data", "policy", "oracle", "horizon", "states", "engine")),
]


@given(location=st.sampled_from(KEYS), value=VALUES)
def test_whatever_is_written_is_taken_or_refused_in_one_sentence(
    location: tuple[str, ...], value: Any
) -> None:
    content: dict[str, Any] = {"task": "digits"}
    at = content
    for key in location[:-1]:
        at = at.setdefault(key, {})
    at[location[-1]] = value
    try:
        build_run(content, "run.toml", folder=Path("/nowhere"))
    except InvalidInput as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 400


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    content: dict[str, Any] = {"task": "embeddings", "data": {"path": "mine.npz"}}
    settings = build_run(content, "run.toml", folder=tmp_path)
    assert settings.sections.data.path == str(tmp_path / "mine.npz")
    content["data"]["path"] = "/elsewhere/mine.npz"
    assert build_run(content, "x", folder=tmp_path).sections.data.path == "/elsewhere/mine.npz"


# --- the problem ---


def test_a_problem_comes_from_sections_a_file_or_a_preset(tmp_path: Path) -> None:
    own = make_run()
    sections = ("oracle", "cost", "horizon")
    problem = {name: HORIZON[name] for name in sections}
    (tmp_path / "problem.toml").write_text(tomli_w.dumps(problem))
    content = {key: value for key, value in HORIZON.items() if key not in sections}
    content["problem"] = "problem.toml"
    by_file = build_run(content, "run.toml", folder=tmp_path)
    assert by_file.content == own.content
    queue = make_run({"task": "digits", "problem": "sound/queue"})
    assert isinstance(queue.problem, QueueProblem)
    assert queue.rounds == QUEUE_ROUNDS


def test_rounds_and_updates_of_the_run_override_the_problem() -> None:
    settings = make_run({"task": "digits"}, rounds=9, updates=2)
    assert isinstance(settings.problem, FiniteHorizon)
    assert (settings.problem.rounds, settings.problem.updates, settings.rounds) == (9, 2, 9)
    assert make_run(QUEUE, rounds=7).rounds == 7


# --- and back ---

RUNS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"task": "toxicity"}, {}),
    (HORIZON, {}),
    (HORIZON, {"rounds": 9, "updates": 2, "decoy": {"gated": False}}),
    (HORIZON, {"data": {"split": {"dirichlet": 0.3}, "public_classes": 2}}),
    (HORIZON, {"federation": {"optimizer": {"name": "sgd", "lr": 1e-9, "momentum": 0.9}}}),
    (HORIZON, {"policy": {"kind": "spga", "refresh": 5}, "seed": 2**63 - 1}),
    (HORIZON, {"policy": {"kind": "spga", "refresh": 5, "live": "search"}}),
    (HORIZON, {"policy": {"kind": "file", "path": 'odd "name"\\ \x7f\x1f é.json'}}),
    (HORIZON, {"federation": {"algorithm": "fedsgd", "acceptance": "model", "min_share": 0.1}}),
    (QUEUE, {}),
    (QUEUE, {"rounds": None}),
    (QUEUE, {"arrivals": "arrivals.csv", "federation": {"log": "log.csv"}}),
    (HORIZON, {"states": {"column": "clients", "cuts": [3.0, 5.5], "min_examples": 9.0}}),
    (BASES["horizon"], {"exchangeable": {"trajectories": 4, "pivot": "0.weight"}}),
    (BASES["queue"], {"federation": {"secret": "federation.json"}}),
    ({"task": "digits", "problem": "sound/queue"}, {}),
]


@pytest.mark.parametrize(("base", "changes"), RUNS)
def test_a_written_run_is_the_same_run(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any]
) -> None:
    settings = make_run(base, **changes)
    text = format_run(settings, {"covertfl": "1.0"})
    again = read_run(write(tmp_path, text))
    assert format_run(again, {"covertfl": "1.0"}) == text
    assert again.rounds == settings.rounds
    assert again.content == settings.content
    skipped = {"problem", "rounds", "oracle", "cost", "queue", "horizon"}
    assert again.sections.model_dump(exclude=skipped) == settings.sections.model_dump(
        exclude=skipped
    )


def test_a_run_file_of_covertfl_has_a_format_and_another_one_is_refused(tmp_path: Path) -> None:
    text = format_run(make_run(), {})
    line = f"format = {FORMATS['run']}\n"
    assert text.startswith(f'{line}task = "digits"\n')
    without = text.removeprefix(line)
    by_hand = without.removesuffix("\n[versions]\n")  # a user need not state a format
    assert format_run(read_run(write(tmp_path, by_hand)), {}) == text
    newer = f"format = {FORMATS['run'] + 1}\nunheard_of = 1\n{without}"
    for other, said in ((without, "an older"), (newer, "a newer")):
        for read in (
            lambda other=other: read_run(write(tmp_path, other)),
            lambda other=other: find_change(
                parse_toml(other, "x"), parse_toml(text, "x"), "run.toml"
            ),
        ):
            with pytest.raises(InvalidInput, match=rf"run\.toml: .*{said} version wrote the file"):
                read()


@given(st.floats(min_value=1e-300, allow_infinity=False, allow_nan=False))
def test_numbers_are_written_in_full(number: float) -> None:
    settings = make_run(federation={"optimizer": {"lr": number}})
    content = parse_toml(format_run(settings, {}), "run.toml")
    assert content["federation"]["optimizer"]["lr"] == number


def test_another_seed_changes_the_seed_alone() -> None:
    settings = make_run()
    other = settings.with_seed(11)
    assert other.seed == 11
    assert other.with_seed(settings.seed).sections == settings.sections
    assert (
        find_change(describe_run(settings, {}), describe_run(other, {}), "x") == "seed = 3, got 11"
    )


@pytest.mark.parametrize(
    "changes", [{"rounds": 50}, {"horizon": {"rounds": 50}}, {"engine": {"device": "cuda"}}, {}]
)
def test_a_run_goes_on_with_more_rounds_or_another_device(changes: dict[str, Any]) -> None:
    before, after = (
        describe_run(make_run(), {"a": "1"}),
        describe_run(make_run(**changes), {"a": "2"}),
    )
    assert find_change(before, after, "x") is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policy": {"kind": "greedy"}}, "[policy] kind = 'optimal', got 'greedy'"),
        ({"updates": 3}, "updates = None, got 3"),
        ({"decoy": {"gated": True}}, "[decoy] gated = 'matched', got true"),
        ({"scheme": "exchangeable"}, "scheme = 'scheduled', got 'exchangeable'"),
        ({"federation": {"optimizer": {"lr": 0.5}}}, "[federation] optimizer.lr = 0.001, got 0.5"),
        ({"cost": {"privacy": [9, 9, 9]}}, "[cost] privacy = [1.8, 0.8, 0.3], got [9, 9, 9]"),
    ],
)
def test_another_run_is_told_apart_by_its_first_key(changes: dict[str, Any], said: str) -> None:
    assert (
        find_change(describe_run(make_run(), {}), describe_run(make_run(**changes), {}), "x")
        == said
    )


def test_merging_leaves_the_base_alone() -> None:
    merged = merge(HORIZON, {"federation": {"clients": 9}})
    assert merged["federation"]["clients"] == 9
    assert HORIZON["federation"]["clients"] == 6
    assert math.isclose(sum(HORIZON["oracle"]["transition"][0]), 1.0)
