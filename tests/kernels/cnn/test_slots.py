"""Jobs in the slots of a stack."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from covertfl.kernels.cnn.slots import assign_slots, count_slots

lengths = st.lists(st.integers(0, 7), max_size=12)


@given(lengths, st.integers(1, 6))
def test_every_job_has_its_steps_in_a_slot_of_its_own(lengths: list[int], slots: int) -> None:
    stays = assign_slots(lengths, slots)
    assert sorted(stay.job for stay in stays) == [n for n, steps in enumerate(lengths) if steps]
    assert [stay.start for stay in stays] == sorted(stay.start for stay in stays)
    used: set[tuple[int, int]] = set()
    for stay in stays:
        assert stay.stop - stay.start == lengths[stay.job] and 0 <= stay.slot < slots
        places = {(stay.slot, time) for time in range(stay.start, stay.stop)}
        assert not used & places
        used |= places


@given(lengths, st.integers(1, 6))
def test_no_slot_is_free_while_a_job_waits(lengths: list[int], slots: int) -> None:
    stays = assign_slots(lengths, slots)
    for time in range(max((stay.stop for stay in stays), default=0)):
        inside = [stay for stay in stays if stay.start <= time < stay.stop]
        waiting = [stay for stay in stays if stay.start > time]
        assert len(inside) == slots or not waiting
        # The longest come first.
        assert all(
            lengths[one.job] <= lengths[other.job]
            for one in waiting
            for other in inside
            if other.start == time
        )


def test_slots_fill_the_time_of_the_longest_job() -> None:
    assert count_slots([20, 20, 10, 10], 512) == 4  # 3 and a slack
    assert count_slots([20, 20, 10, 10], 2) == 2
    assert count_slots([7] * 30, 512) >= 30  # jobs that can all run at once do
    assert count_slots([], 512) == count_slots([0], 512) == 1
    assert max(stay.stop for stay in assign_slots([20, 20, 10, 10], 3)) == 20
