"""The report: what its page says against the result files, with and without a browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.report.records import (
    average_policy,
    find_backlog_limit,
    find_guess,
    find_little_wait,
    find_runs,
    find_wait_limit,
    read_audit,
    read_run_records,
)
from covertfl.report.write import choose_curves, list_notes, write_report
from tests.support.small_runs import FUNCTION_QUEUE, run_small

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

COMMAND = "covertfl report 'a <folder>'"
NUM_ROUNDS = 12
FIGURES = {"chances", "accuracy", "actions", "exposure", "policy", "backlog", "waits"}
SETTINGS = """task = "digits"
seed = {seed}

[policy]
kind = "optimal"

[decoy]
kind = "public"

[oracle]
transition = [[0.5, 0.5], [0.5, 0.5]]
success = [0.2, 0.9]

[cost]
learning = {{ shape = "linear", scale = 0.5, charged = "always" }}

[queue]
arrival_prob = 0.1
arrival_size = 4
learning_limit = 3.0

[versions]
covertfl = "0.1.0"
"""


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_run(folder: Path, seed: int) -> None:
    """A run that owes four updates and learns in every third round, in vain the first time."""
    generator = np.random.default_rng(seed)
    backlog, learned = 4, 0
    public, metrics, private, updates = [], [], [], []
    for number in range(1, NUM_ROUNDS + 1):
        learns = number % 3 == 0
        updated = learns and number > 3
        before, backlog, learned = backlog, backlog - updated, learned + learns
        public.append({"round": number, "client": None, "weights": "0" * 64})
        metrics.append(
            {
                "round": number,
                "learner_score": float(generator.uniform(0.5, 0.9)),
                "decoy_scores": [0.5],
                "backlog": backlog,
                "exposure": learned / number,
            }
        )
        private.append(
            {
                "round": number,
                "oracle_state": number % 2,
                "backlog": before,
                "arrival": 0,
                "learn_prob": float(learns),
                "action": "learn" if learns else "obfuscate",
                "trajectory": 0 if learns else 1,
                "accepted": updated,
                "updated": updated,
                "rejected": [[1, "shape"]] if number == 1 else [],
                "backlog_after": backlog,
            }
        )
        if updated:
            updates.append({"task": 1, "came": 0, "done": number, "finished": False})
    write_lines(folder / "public" / "rounds.jsonl", public)
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "private" / "rounds.jsonl", private)
    write_lines(folder / "private" / "updates.jsonl", updates)
    (folder / "run.toml").write_text(SETTINGS.format(seed=seed))
    summary = {
        "learner_accuracy": metrics[-1]["learner_score"],
        "updates_done": len(updates),
        "rounds": NUM_ROUNDS,
        "learning_queries": learned,
        "exposure": learned / NUM_ROUNDS,
        "completed": backlog == 0,
        "updates_missing": backlog,
        "rejected_replies": 1,
        "rejected_by_reason": {"shape": 1},
        "average_privacy_cost": 0.25,
        "mean_wait": 9.0,
        "average_learning_cost": 1.5,
        "learning_limit": 3.0,
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def write_audit(folder: Path, num_runs: int) -> dict[str, Any]:
    """An audit with invented numbers; one eavesdropper has a name that HTML would trip over."""
    generator = np.random.default_rng(5)
    names = ("majority", "minority", "likelihood", "repeat", "<b>&odd", "train-alone")
    entries = {}
    for name in names:
        ends = np.sort(generator.uniform(size=(2, 2)), axis=1).tolist()
        curve = generator.uniform(0.4, 0.8, NUM_ROUNDS).tolist()
        entries[name] = {
            "threat": f"sees what {name} sees",
            "names_true": float(generator.uniform()),
            "interval": ends[0],
            "final_accuracy": curve[-1],
            "final_interval": ends[1],
            "worst_accuracy": max(curve),
            "advantage": float(generator.uniform(-0.2, 0.2)),
            "by_schedule": name in ("majority", "minority", "likelihood"),
            "verdict": f"cannot tell: {name} is at a loss",
            "accuracy_by_round": curve,
        }
    entries["repeat"] |= {"names_true": None, "interval": None, "final_interval": None}
    audit = {
        "runs": num_runs,
        "learner": {
            "accuracy": 0.7,
            "interval": [0.61, 0.79],
            "completion": 0.0,
            "exposure": 1 / 3,
            "exposure_by_round": [0.3] * NUM_ROUNDS,
            "accuracy_by_round": [0.7] * NUM_ROUNDS,
        },
        "eavesdroppers": entries,
        "bound": {"value": 0.9244, "interval": [0.919, 0.93]},
        "separation": {"trajectories": [2] * num_runs, "right_share": 0.98},
        "mismatch": {"statistic": 7.22, "degrees": 7, "p_value": 0.41, "rounds": 24},
        "coalitions": {
            "1": {
                "rounds_seen": 0.51234,
                "eavesdroppers": {
                    "majority": {
                        "names_true": 0.25,
                        "interval": [0.11, 0.45],
                        "final_accuracy": 0.7126,
                    },
                    "repeat": {"names_true": 0.5, "interval": None, "final_accuracy": None},
                },
            }
        },
        "warnings": ["Trajectories were told apart for 98.0% of queries only."],
    }
    (folder / "audit.json").write_text(json.dumps(audit))
    return audit


def write_runs(folder: Path) -> Path:
    """Three audited runs."""
    for seed in range(3):
        write_run(folder / f"seed-{seed}", seed)
    write_audit(folder, 3)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three audited runs that a test may change."""
    return write_runs(tmp_path / "runs")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three audited runs with their report, not to be changed."""
    folder = write_runs(tmp_path_factory.mktemp("report") / "runs")
    assert write_report(folder, command=COMMAND) == folder / "report.html"
    return folder


class Page(HTMLParser):
    """The cells of each table by its class, its words, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.references: list[str] = []
        self.identifiers: list[str] = []
        self.num_plots = 0
        self._rows: list[list[str]] | None = None
        self._in_cell = self._in_style = False
        self.words = ""
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        self.tags.append(tag)
        self.references += [
            value or "" for key, value in attrs if key in ("src", "href", "xlink:href")
        ]
        if "id" in facts:
            self.identifiers.append(facts["id"] or "")
        self.num_plots += tag == "svg"
        self._in_style = tag == "style"
        if tag == "table":
            self._rows = self.tables[facts["class"] or ""] = []
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows is not None:
            self._rows[-1].append("")
            self._in_cell = True
        elif tag in ("small", "br") and self._in_cell and self._rows is not None:
            self._rows[-1][-1] += "\n"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False
        elif tag == "table":
            self._rows = None

    def handle_data(self, data: str) -> None:
        if not self._in_style:
            self.words += data
        if self._in_cell and self._rows is not None:
            self._rows[-1][-1] += data


def read_page(folder: Path) -> Page:
    return Page(write_report(folder, command=COMMAND).read_text("utf-8"))


def read_notes(folder: Path) -> str:
    """What the page warns of."""
    runs = [read_run_records(path) for path in find_runs(folder)]
    return "\n".join(list_notes(runs, read_audit(folder)))


def check_audit_table(rows: list[list[str]], audit: dict[str, Any]) -> None:
    """Every cell of the table says what the audit says, to the places it shows."""
    assert len(rows) == 1 + len(audit["eavesdroppers"])
    for row, (name, entry) in zip(rows[1:], audit["eavesdroppers"].items(), strict=True):
        assert row[0].split("\n") == [name, entry["threat"]]
        check_number(row[1], entry["names_true"], 100.0)
        check_interval(row[2], entry["interval"], 100.0)
        check_number(row[3], entry["final_accuracy"], 1.0)
        check_interval(row[4], entry["final_interval"], 1.0)
        check_number(row[5], entry["worst_accuracy"], 1.0)
        check_number(row[6], entry["advantage"], 1.0)
        assert row[7].replace("\n", "") == entry["verdict"]


def check_number(text: str, value: float | None, scale: float) -> None:
    if value is None:
        assert text == "unknown"
        return
    assert text.endswith("%") == (scale == 100.0)
    number = text.rstrip("%")
    places = len(number.partition(".")[2])
    assert places == (1 if scale == 100.0 else 3)
    assert abs(float(number) - scale * value) <= 0.5 * 10.0**-places + 1e-9


def check_interval(text: str, ends: list[float] | None, scale: float) -> None:
    if ends is None:
        assert text == ""
        return
    low, high = text.split(" to ")
    check_number(low, ends[0], scale)
    check_number(high, ends[1], scale)


# --- the page without a browser ---------------------------------------------------------------


def test_the_table_is_the_audit(reported: Path) -> None:
    page = Page((reported / "report.html").read_text("utf-8"))
    check_audit_table(page.tables["audit"], json.loads((reported / "audit.json").read_text()))
    assert "92.4% of runs (91.9% to 93.0%; F4)" in page.words
    assert "right trajectory: 98.0%" in page.words
    assert "Audit: Trajectories were told apart for 98.0% of queries only." in page.words


def test_coalitions_are_the_audit(reported: Path) -> None:
    page = Page((reported / "report.html").read_text("utf-8"))
    assert page.tables["coalitions"][1:] == [
        ["1", "51.2%", "majority", "25.0%", "11.0% to 45.0%", "0.713"],
        ["1", "51.2%", "repeat", "50.0%", "", "unknown"],
    ]


def test_cards_and_runs_are_the_summaries(reported: Path) -> None:
    page = Page((reported / "report.html").read_text("utf-8"))
    summaries = [
        json.loads((reported / f"seed-{n}" / "summary.json").read_text()) for n in range(3)
    ]
    mean = np.mean([summary["learner_accuracy"] for summary in summaries])
    for words in (
        f"Learner accuracy{mean:.3f}95%: 0.610 to 0.790",
        "Exposure33.3%",
        "Completed0 of 3",
        "Updates missing3still owed; 9 were done",
        "Rejected replies33 shape",
        "Average learning cost1.500of a round; the limit is 3",
    ):
        assert words in page.words
    rows = page.tables["runs"][1:]
    assert [row[0] for row in rows] == ["seed-0", "seed-1", "seed-2"]
    for row, summary in zip(rows, summaries, strict=True):
        check_number(row[2], summary["learner_accuracy"], 1.0)
        check_number(row[5], summary["exposure"], 100.0)
        counts = [summary[key] for key in ("rounds", "learning_queries")]
        assert [row[3], row[4]] == [str(count) for count in counts]
        assert [row[6], row[7], row[10]] == ["3", "1", "1"]


def test_the_page_is_complete_in_itself(reported: Path) -> None:
    page = Page((reported / "report.html").read_text("utf-8"))
    assert page.num_plots == len(FIGURES)
    assert len(set(page.identifiers)) == len(page.identifiers)
    assert not {"script", "iframe", "object"} & set(page.tags)
    files = {f"report/{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert {reference for reference in page.references if reference.startswith("report/")} == files
    for reference in page.references:
        assert reference.startswith(("#", "data:", "report/")), reference
    assert all((reported / file).stat().st_size > 1000 for file in files)
    assert COMMAND in page.words
    # What a plot refers to within itself is there.
    inner = {reference[1:] for reference in page.references if reference.startswith("#")}
    assert inner and inner <= set(page.identifiers)


def test_settings_and_versions_are_shown(reported: Path) -> None:
    words = Page((reported / "report.html").read_text("utf-8")).words
    assert "shape = linear, scale = 0.5, charged = always" in words
    assert re.search(r"versions of the run\s*covertfl\s*0\.1\.0", words)


def test_same_results_same_bytes(reported: Path, folder: Path) -> None:
    """The same in another place, but for the place itself."""

    def read(place: Path) -> dict[str, bytes]:
        files = {path.name: path.read_bytes() for path in (place / "report").iterdir()}
        page = (place / "report.html").read_bytes()
        return files | {"page": page.replace(str(place).encode(), b"")}

    write_report(folder, command=COMMAND)
    assert read(folder) == read(reported)


def test_what_tells_of_actions_is_for_its_owner(reported: Path) -> None:
    page = reported / "report.html"
    assert page.stat().st_mode & 0o077 == 0
    assert (reported / "report").stat().st_mode & 0o077 == 0


def test_nothing_that_solves_or_trains_is_imported(folder: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from covertfl.report.write import write_report\n"
        f"write_report(pathlib.Path({str(folder)!r}), command='')\n"
        "heavy = {'torch', 'numba', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "parts = {name.partition('.')[2] for name in sys.modules if name.startswith('covertfl.')}\n"
        "allowed = {'errors', 'atomic_file', 'toml_file', 'transcript', 'weights', 'templates'}\n"
        "print(heavy | {p for p in parts - allowed if not p.startswith('report')})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


# --- numbers worked by hand -------------------------------------------------------------------


def test_waits_and_little_by_hand(reported: Path) -> None:
    """Four updates owed for rounds 1..6, one less after each of 6, 9 and 12."""
    runs = [read_run_records(reported / "seed-0")]
    assert find_little_wait(runs) == (4 * 6 + 3 * 3 + 2 * 3) / 3
    assert find_backlog_limit(runs[0]) == 6.0  # 3.0 at 0.5 for each update owed
    assert find_wait_limit(runs[0]) == 15.0  # 6 owed, 0.4 coming a round
    words = Page((reported / "report.html").read_text("utf-8")).words
    assert "9 updates waited 9.0 rounds on average; by Little's law 13.0" in words


def test_policy_map_by_hand(reported: Path) -> None:
    means, rounds = average_policy([read_run_records(reported / "seed-0")])
    assert rounds == NUM_ROUNDS and means.shape == (2, 5)
    # With four owed: rounds 1, 3, 5 see state 1 and 2, 4, 6 state 0; learning in 3 and 6.
    np.testing.assert_allclose(means[:, 4], [1 / 3, 1 / 3])
    np.testing.assert_allclose(means[:, 3], [0.0, 0.5])  # 8 | 7, 9
    np.testing.assert_allclose(means[:, 2], [0.5, 0.0])  # 10, 12 | 11
    assert np.isnan(means[:, :2]).all()


def test_a_guess_among_several_decoys(folder: Path) -> None:
    assert find_guess(read_run_records(folder / "seed-0")) == 0.5
    path = folder / "seed-0" / "run.toml"
    path.write_text(path.read_text().replace('"public"', '"public"\ncount = 3'))
    assert find_guess(read_run_records(folder / "seed-0")) == 0.25


def test_curves_that_are_drawn() -> None:
    levels = {"majority": 0.1, "a": 0.3, "b": 0.9, "likelihood": 0.2, "train-alone": 0.4}
    entries: dict[str, Any] = {
        name: {"accuracy_by_round": [level] * 2} for name, level in levels.items()
    }
    entries["none"] = {"accuracy_by_round": None}
    assert list(choose_curves({"eavesdroppers": entries})) == [
        "majority",
        "likelihood",
        "b",
        "train-alone",
    ]
    assert choose_curves(None) == {}


# --- what is missing --------------------------------------------------------------------------


def test_without_an_audit_the_page_says_how_to_make_one(folder: Path) -> None:
    (folder / "audit.json").unlink()
    page = read_page(folder)
    assert "audit" not in page.tables
    assert f"covertfl audit {folder}" in page.words
    assert page.num_plots == len(FIGURES) - 1


def test_one_run(folder: Path) -> None:
    page = read_page(folder / "seed-1")
    assert [row[0] for row in page.tables["runs"][1:]] == ["seed-1"]
    assert page.num_plots == len(FIGURES) - 1


def test_a_public_folder_alone(folder: Path) -> None:
    page = read_page(folder / "seed-0" / "public")
    assert "nothing of what was done" in page.words
    assert page.num_plots == 0
    assert page.tables["runs"][1][:4] == ["public", "no", "unknown", str(NUM_ROUNDS)]


def test_no_private_records(folder: Path) -> None:
    shutil.rmtree(folder / "seed-0" / "private")
    page = read_page(folder / "seed-0")
    assert "seed-0 has no private records" in page.words
    assert page.num_plots == 3  # accuracy, exposure, backlog


def test_a_run_that_has_not_ended(folder: Path) -> None:
    run = folder / "seed-2"
    (run / "summary.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:5]) + "\n" + lines[5][:20])
    page = read_page(folder)
    assert "seed-2 has not ended" in page.words
    assert "metrics.jsonl line 6 is not JSON" in page.words
    assert "different numbers of rounds" in page.words
    assert "Completed0 of 2" in page.words
    last = json.loads(lines[4])
    row = page.tables["runs"][3]
    assert row[1] == "no" and row[3] == "5"
    check_number(row[2], last["learner_score"], 1.0)
    assert row[7] == str(last["backlog"])


def test_a_run_without_rounds(tmp_path: Path) -> None:
    (tmp_path / "run" / "public").mkdir(parents=True)
    (tmp_path / "run" / "run.toml").write_text(SETTINGS.format(seed=0))
    page = read_page(tmp_path / "run")
    assert page.num_plots == 0
    assert "run has not ended" in page.words


def test_no_update_done(folder: Path) -> None:
    for seed in range(3):
        (folder / f"seed-{seed}" / "private" / "updates.jsonl").write_text("")
    page = read_page(folder)
    assert "No update that was owed has been done." in page.words
    assert page.num_plots == len(FIGURES) - 1


def test_an_audit_of_other_runs(folder: Path) -> None:
    write_run(folder / "seed-3", 3)
    assert "The audit is of another set of runs" in read_notes(folder)


def test_an_audit_of_fewer_rounds(folder: Path) -> None:
    audit = json.loads((folder / "audit.json").read_text())
    audit["learner"]["exposure_by_round"] = [0.3]
    (folder / "audit.json").write_text(json.dumps(audit))
    assert "The audit covers fewer rounds" in read_notes(folder)


def test_runs_of_different_settings(folder: Path) -> None:
    path = folder / "seed-1" / "run.toml"
    path.write_text(path.read_text().replace('"optimal"', '"greedy"'))
    assert "differ in more than their seeds ([policy] kind)" in read_notes(folder)


def test_a_function_has_no_accuracy(tmp_path: Path) -> None:
    """A run as training writes it."""
    summary = run_small(tmp_path / "run", FUNCTION_QUEUE).to_dict()
    page = read_page(tmp_path / "run")
    assert f"Function value{summary['learner_value']:.3f}" in page.words
    assert "A function has no accuracy" in page.words
    row = page.tables["runs"][1]
    assert row[3] == str(summary["rounds"])
    assert row[4] == str(summary["learning_queries"])
    check_number(row[8], summary["mean_wait"], 1.0)
    little = find_little_wait([read_run_records(tmp_path / "run")])
    assert little == pytest.approx(summary["little_wait"])


def test_long_backlogs_become_an_image(folder: Path) -> None:
    path = folder / "seed-0" / "private" / "rounds.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    write_lines(path, [{**record, "backlog": 5000 + record["backlog"]} for record in records])
    write_report(folder / "seed-0", command=COMMAND)
    assert (folder / "seed-0" / "report" / "policy.svg").stat().st_size < 200_000


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("audit.json", "{", "is not JSON"),
        ("audit.json", "[]", "must hold an object"),
        ("audit.json", '{"runs": 1, "learner": {}}', "lacks 'eavesdroppers'"),
        (
            "audit.json",
            '{"runs": 1, "learner": {}, "eavesdroppers": {"x": {"threat": "y"}}}',
            "eavesdropper 'x' lacks a usable 'verdict'",
        ),
        (
            "audit.json",
            '{"runs": 1, "learner": {}, "eavesdroppers": {}, "coalitions": {"2": {}}}',
            "coalition '2' lacks a usable 'rounds_seen'",
        ),
        ("seed-0/summary.json", "nonsense", "summary.json is not JSON"),
        ("seed-0/run.toml", "= 3", "not valid TOML"),
    ],
)
def test_damaged_files_are_named(folder: Path, file: str, content: str, words: str) -> None:
    (folder / file).write_text(content)
    with pytest.raises(InvalidInput, match=re.escape(words)):
        write_report(folder, command=COMMAND)
    assert not (folder / "report.html").exists()


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no run"):
        write_report(tmp_path, command=COMMAND)
    with pytest.raises(InvalidInput, match="no such folder"):
        write_report(tmp_path / "nowhere", command=COMMAND)


# --- the page in a browser --------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to load the page with")
# Added to a copy of the page: the page itself has no script.
MEASURE = """<script>
addEventListener("load", () => {
  const sizes = [...document.querySelectorAll("figure svg, image, img")].map(element => {
    const box = element.getBoundingClientRect(); return [box.width, box.height]; });
  const label = document.querySelector("figure svg text");
  const found = { sizes, plots: document.querySelectorAll("figure svg").length,
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(label).fill };
  document.body.dataset.found = JSON.stringify(found);
});
</script>"""
NARROW = """<body style="margin:0"><iframe style="width:390px;height:900px;border:0" srcdoc="%s">
</iframe><script>addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument;
  const outside = [...page.querySelectorAll("body *")].filter(element =>
    !element.closest(".scroll") && element.getBoundingClientRect().right > 390.5);
  const found = { width: page.documentElement.scrollWidth, outside: outside.length };
  document.body.dataset.found = JSON.stringify(found);
});</script>"""


def load(page: Path, *options: str) -> tuple[str, list[str]]:
    """The document after loading, and the console's messages."""
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'browser'}",
        *options,
        "--dump-dom",
        page.resolve().as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def find_measured(document: str) -> dict[str, Any]:
    match = re.search(r'data-found="([^"]*)"', document)
    assert match is not None
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    return found


def find_contrast(first: str, second: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""

    def find_luminance(colour: str) -> float:
        values = np.array([int(value) for value in re.findall(r"\d+", colour)[:3]]) / 255.0
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, light = sorted(map(find_luminance, (first, second)))
    return (light + 0.05) / (dark + 0.05)


@needs_chromium
def test_the_page_loads_without_a_complaint(reported: Path) -> None:
    page = reported / "report.html"
    document, messages = load(page)
    assert messages == []
    audit = json.loads((reported / "audit.json").read_text())
    check_audit_table(Page(document).tables["audit"], audit)


@needs_chromium
def test_a_complaint_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>x</title><script>console.error('trouble')</script>")
    assert any("trouble" in message for message in load(page)[1])


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_plot_is_drawn_in_both_schemes(reported: Path, scheme: str) -> None:
    page = reported / "report.html"
    copy = page.with_name("measured.html")
    copy.write_text(page.read_text("utf-8").replace("</body>", f"{MEASURE}</body>"), "utf-8")
    preferred = "0" if scheme == "dark" else "1"
    document, messages = load(copy, f"--blink-settings=preferredColorScheme={preferred}")
    found = find_measured(document)
    assert messages == []
    assert found["plots"] == len(FIGURES)
    assert len(found["sizes"]) > len(FIGURES)  # the actions are an image within their plot
    assert all(width > 100 and height > 30 for width, height in found["sizes"])
    dark = find_contrast(found["paper"], "rgb(0, 0, 0)") < find_contrast(
        found["paper"], "rgb(255, 255, 255)"
    )
    assert dark == (scheme == "dark")
    assert find_contrast(found["paper"], found["ink"]) > 7.0


@needs_chromium
def test_nothing_sticks_out_on_a_phone(reported: Path) -> None:
    page = reported / "report.html"
    wrapper = page.with_name("narrow.html")
    wrapper.write_text(NARROW % html.escape(page.read_text("utf-8")), "utf-8")
    found = find_measured(load(wrapper)[0])
    assert found["width"] <= 390 and found["outside"] == 0
