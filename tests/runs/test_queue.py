"""The optimisation queue: order, waits, losses, and files of arrivals."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from covertfl.errors import InvalidInput
from covertfl.runs.queue import DoneUpdate, OwedTask, UpdateQueue, read_arrivals

# What happens in a round: an update is done if one is owed, then some arrive.
ROUNDS = st.lists(st.tuples(st.booleans(), st.sampled_from([0, 0, 0, 1, 2, 5])), max_size=60)


# Task and round of every update owed; updates lost, tasks; task and rounds of those done; backlogs.
Plain = tuple[list[tuple[int, int]], int, int, list[tuple[int, int, int]], list[int]]


def play(
    rounds: list[tuple[bool, int]], capacity: int | None
) -> tuple[list[UpdateQueue], list[DoneUpdate]]:
    """Queue after each round, and every update done."""
    queue, queues, done = UpdateQueue(), [], []
    for number, (serves, size) in enumerate(rounds, start=1):
        if serves and queue.backlog > 0:
            queue, update = queue.serve(number)
            done.append(update)
        queue = queue.admit(size, number, capacity)
        queues.append(queue)
    return queues, done


def play_plainly(rounds: list[tuple[bool, int]], capacity: int | None) -> Plain:
    """The same with a list that has one entry, its task and round, for each update owed."""
    owed: list[tuple[int, int]] = []
    done: list[tuple[int, int, int]] = []
    lost, task, backlogs = 0, 0, []
    for number, (serves, size) in enumerate(rounds, start=1):
        backlogs.append(len(owed))
        if serves and owed:
            done.append((*owed.pop(0), number))
        task += size > 0
        for _ in range(size):
            if capacity is not None and len(owed) >= capacity:
                lost += 1
            else:
                owed.append((task, number))
    return owed, lost, task, done, backlogs


@given(rounds=ROUNDS, capacity=st.sampled_from([None, 1, 3, 8]))
def test_against_a_plain_list(rounds: list[tuple[bool, int]], capacity: int | None) -> None:
    queues, done = play(rounds, capacity)
    owed, lost, arrived, plain, _ = play_plainly(rounds, capacity)
    last = queues[-1] if queues else UpdateQueue()
    assert [(task.task, task.came) for task in last.tasks for _ in range(task.left)] == owed
    assert (last.backlog, last.lost, last.arrived) == (len(owed), lost, arrived)
    assert [(update.task, update.came, update.done) for update in done] == plain
    assert all(task.left > 0 for queue in queues for task in queue.tasks)


@given(rounds=ROUNDS, capacity=st.sampled_from([None, 4]))
def test_littles_law_holds_exactly_once_what_is_still_owed_is_counted(
    rounds: list[tuple[bool, int]], capacity: int | None
) -> None:
    """Each update is in the backlog of rounds came + 1 .. done: both sides count the same pairs."""
    _, done = play(rounds, capacity)
    owed, *_, backlogs = play_plainly(rounds, capacity)
    waits = sum(update.done - update.came for update in done)
    waiting = sum(len(rounds) - came for _, came in owed)
    assert waits + waiting == sum(backlogs)


@given(rounds=ROUNDS, capacity=st.sampled_from([None, 4]))
def test_a_task_is_finished_once_by_its_last_update(
    rounds: list[tuple[bool, int]], capacity: int | None
) -> None:
    queues, done = play(rounds, capacity)
    left = {task.task for task in queues[-1].tasks} if queues else set()
    finished = [update.task for update in done if update.finished]
    assert len(finished) == len(set(finished))
    assert set(finished) == {update.task for update in done} - left


def test_first_come_first_served() -> None:
    queue = UpdateQueue().admit(2, 0, None).admit(1, 4, None)
    order = []
    for number in (5, 6, 9):
        queue, done = queue.serve(number)
        order.append(done)
    assert order == [
        DoneUpdate(1, 0, 5, False),
        DoneUpdate(1, 0, 6, True),
        DoneUpdate(2, 4, 9, True),
    ]
    assert queue.backlog == 0


def test_what_finds_no_room_is_lost() -> None:
    queue = UpdateQueue().admit(3, 1, 4).admit(3, 2, 4)
    assert queue == UpdateQueue((OwedTask(1, 1, 3, 3), OwedTask(2, 2, 1, 1)), 2, 2)
    assert queue.admit(2, 3, 4) == UpdateQueue(queue.tasks, 3, 4)


def test_a_step_leaves_the_queue_before_it_as_it_was() -> None:
    queue = UpdateQueue().admit(2, 1, None)
    before = astuple(queue)
    queue.serve(2)
    queue.admit(5, 2, None)
    assert astuple(queue) == before


def test_updates_are_read_by_round(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("round,updates\n2,3\n5,0\n9,1\n")
    assert read_arrivals(str(path)) == {2: 3, 5: 0, 9: 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "first line must be round,updates, got nothing"),
        ("when,what\n1,2\n", "first line must be round,updates, got when,what"),
        ("round,updates\n1,two\n", "line 2: updates must be a whole number in 0.."),
        ("round,updates\n1\n", "line 2: updates must be a whole number"),
        ("round,updates\n0,2\n", "line 2: round must be a whole number in 1.."),
        ("round,updates\n1,-2\n", "line 2: updates must be"),
        ("round,updates\n1,99999999999999999999\n", "line 2: updates must be"),
        ("round,updates\n1,2\n3,1\n1,1\n", "line 4: round must occur once, got 1 again"),
    ],
)
def test_bad_files_of_arrivals_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=said) as caught:
        read_arrivals(str(path))
    assert "arrivals.csv" in str(caught.value)
