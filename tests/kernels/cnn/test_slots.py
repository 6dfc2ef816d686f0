"""Timetables of chains in slots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from covertfl.kernels.cnn.slots import Lengths, Timetable, assign_slots, count_slots

chains = st.lists(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=4),
    max_size=6,
)


def find_ends(found: Timetable) -> dict[tuple[int, int], int]:
    return {(end.chain, end.move): end.time for end in found.ends}


@given(chains, st.integers(1, 6))
def test_every_job_has_its_steps_after_the_move_before(lengths: Lengths, slots: int) -> None:
    found = assign_slots(lengths, slots)
    stays = {(stay.chain, stay.move, stay.job): stay for stay in found.stays}
    assert len(stays) == len(found.stays)
    ends = find_ends(found)
    assert len(ends) == len(found.ends) == sum(len(chain) for chain in lengths)
    assert [end.time for end in found.ends] == sorted(end.time for end in found.ends)
    assert [stay.start for stay in found.stays] == sorted(stay.start for stay in found.stays)
    for number, chain in enumerate(lengths):
        before = 0
        for move, jobs in enumerate(chain):
            own = [stays.get((number, move, job)) for job in range(len(jobs))]
            for steps, stay in zip(jobs, own, strict=True):
                assert (stay is None) == (steps == 0)
                assert stay is None or (stay.stop - stay.start == steps and stay.start >= before)
            stops = [stay.stop for stay in own if stay is not None]
            assert ends[number, move] == max(stops, default=before)
            before = ends[number, move]


@given(chains, st.integers(1, 6))
def test_a_slot_holds_one_job_at_a_time_and_none_is_idle_in_vain(
    lengths: Lengths, slots: int
) -> None:
    found = assign_slots(lengths, slots)
    ends = find_ends(found)
    assert found.num_slots <= slots
    for time in range(found.num_steps):
        inside = [stay for stay in found.stays if stay.start <= time < stay.stop]
        assert len({stay.slot for stay in inside}) == len(inside)
        ready = [
            stay
            for stay in found.stays
            if stay.start > time and (stay.move == 0 or ends[stay.chain, stay.move - 1] <= time)
        ]
        assert len(inside) == slots or not ready


def test_the_longest_way_goes_first() -> None:
    """One slot: the chain of two moves before the single long job."""
    found = assign_slots([[[3]], [[2], [2]]], 1)
    assert [(stay.chain, stay.move) for stay in found.stays] == [(1, 0), (0, 0), (1, 1)]
    assert found.num_steps == 7


def test_slots_fill_the_time_of_the_longest_chain() -> None:
    lengths = [[[10], [10]], *([[[5]]] * 8)]  # 60 steps in all, 20 of them in a row
    assert count_slots(lengths, 512) == 4  # 3 and a slack
    assert count_slots(lengths, 2) == 2
    assert assign_slots(lengths, 4).num_steps == 20
    assert count_slots([[[7]]] * 30, 512) >= 30  # jobs that can all run at once do
    assert count_slots([], 512) == count_slots([[[0]]], 512) == 1
    assert assign_slots([], 3).num_steps == assign_slots([[[0], [0]]], 3).num_slots == 0
