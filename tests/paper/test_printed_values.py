"""The paper's printed values, transcribed once more from its tables, against those in the code."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from paper import random_policy, table_fedsgd, table_main, table_mnist, table_states

# Table 1: eavesdropper and learner of scenario 1, eavesdropper and learner of scenario 2.
TABLE_1 = """
Greedy  0.83 0.84 0.83 0.82
Optimal 0.52 0.81 0.69 0.81
"""
# Table 2: eavesdropper and learner with FedSGD, eavesdropper and learner with seven oracle states.
TABLE_2 = """
Greedy  0.89 0.89 0.93 0.88
Optimal 0.56 0.88 0.34 0.88
"""
# Tables 3 and 4, their first rows of each size: good classes, size, the eavesdropper's accuracy
# under "greedy", under "optimal" for the three shares, the learner's under "greedy" and "optimal".
TABLE_3 = """
2 0.1 0.857 0.336 0.725 0.927 0.925 0.832
2 0.4 0.859 0.445 0.907 0.973 0.924 0.815
2 1   0.850 0.632 0.916 0.968 0.930 0.822
5 0.1 0.843 0.784 0.900 0.932 0.924 0.817
5 0.4 0.834 0.707 0.920 0.970 0.922 0.819
5 1   0.848 0.820 0.961 0.977 0.926 0.815
8 0.1 0.830 0.898 0.957 0.943 0.926 0.819
8 0.4 0.868 0.898 0.936 0.955 0.926 0.809
8 1   0.864 0.943 0.975 0.975 0.931 0.831
"""
TABLE_4 = """
2 0.1 0.861 0.320 0.611 0.852 0.860 0.840
2 0.4 0.884 0.318 0.734 0.895 0.862 0.830
2 1   0.852 0.393 0.864 0.955 0.859 0.843
5 0.1 0.875 0.461 0.655 0.807 0.638 0.838
5 0.4 0.843 0.595 0.795 0.916 0.854 0.833
5 1   0.864 0.000 0.000 0.000 0.857 0.840
8 0.1 0.868 0.000 0.000 0.000 0.856 0.839
8 0.4 0.841 0.805 0.916 0.914 0.862 0.832
8 1   0.861 0.000 0.000 0.000 0.853 0.840
"""


def read(text: str) -> list[list[str]]:
    return [line.split() for line in text.split("\n") if line]


def test_main_table() -> None:
    found = {}
    for name, *values in read(TABLE_1):
        policy = {"Greedy": "greedy", "Optimal": "spga"}[name]  # stationary, by policy gradient
        found[1, policy] = (float(values[0]), float(values[1]))
        found[2, policy] = (float(values[2]), float(values[3]))
    assert found == table_main.PAPER


def test_small_tables_and_the_random_policy() -> None:
    rows = {name.lower(): tuple(map(float, values)) for name, *values in read(TABLE_2)}
    assert {name: values[:2] for name, values in rows.items()} == table_fedsgd.PAPER
    assert {name: values[2:] for name, values in rows.items()} == table_states.PAPER
    assert random_policy.PAPER == {"random": (None, 0.805), "optimal": (None, 0.925)}


@pytest.mark.parametrize(("clients", "text"), [(20, TABLE_3), (50, TABLE_4)])
def test_image_tables(clients: int, text: str) -> None:
    """The learner's columns are exchanged back, and 0.000 is no accuracy (D23)."""
    lines = [list(map(float, line)) for line in read(text)]
    found = table_mnist.list_rows(clients)
    assert len(found) == 3 * len(lines) == 27
    for number, row in enumerate(found):
        classes, size, greedy, *by_share, under_greedy, under_optimal = lines[number // 3]
        assert (row.public.classes, row.public.size) == (classes, size)
        assert row.public.class_share == (0.99, 0.9, None)[number % 3]
        assert row.eavesdropper == {"greedy": greedy, "optimal": by_share[number % 3] or None}
        assert row.learner == {"greedy": under_optimal, "optimal": under_greedy}
