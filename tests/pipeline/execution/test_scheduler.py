"""The next call: every client once, nobody beside another on one actor, no process that is not needed."""

from hypothesis import given
from hypothesis import strategies as st

from anchorfl.pipeline.execution.cohort import FitMetrics
from anchorfl.pipeline.execution.scheduler import CALL_BYTES, Dispatch


def metrics(seconds=1e-3, bytes_up=1000, kept=0):
    return FitMetrics(0.0, seconds, bytes_up, 0, kept)


def played(dispatch, waiting, started=()):
    """Make all calls until nobody waits; every call in flight ends before the next ones are made."""
    waiting, started, calls = dispatch.ordered(waiting), set(started), []
    while waiting:
        busy, now = set(), []
        while (call := dispatch.next(waiting, busy, started)) is not None:
            assert call.slot not in busy
            busy.add(call.slot)
            started.add(call.slot)
            now.append((call.slot, call.clients))
        assert now
        assert len(now) <= dispatch.concurrent
        calls.append(now)
    return calls, started


@given(
    st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.booleans(), st.floats(1e-4, 1.0),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_every_client_is_called_once_by_no_more_actors_than_can_be_busy(
    count, actors, concurrent, several, pace, random
):
    rows = [random.randint(0, 9) for _ in range(count)]
    dispatch = Dispatch(actors, concurrent, rows, several)
    selected = sorted(random.sample(range(count), random.randint(1, count)))
    for _ in range(2):
        calls, started = played(dispatch, selected)
        assert sorted(c for now in calls for _, clients in now for c in clients) == selected
        assert started <= set(range(actors))
        assert len(started) <= min(actors, concurrent)
        dispatch.update_timings([metrics(pace)])


def test_the_largest_go_first_and_an_idle_process_is_taken_before_a_new_one():
    dispatch = Dispatch(8, 2, [5, 9, 7, 9, 1, 2, 3, 4])
    waiting = dispatch.ordered([0, 1, 2, 3])
    assert list(waiting) == [1, 3, 2, 0]
    assert dispatch.next(waiting, (), ()) == (1, [1], False)  # its own actor
    assert dispatch.next(waiting, {1}, {1}) == (3, [3], False)
    assert dispatch.next(waiting, {1, 3}, {1, 3}) is None
    assert dispatch.next(waiting, {3}, {1, 3}) == (1, [2], False)  # not its own, which does not run yet
    assert dispatch.next(waiting, (), {0, 1, 3}) == (0, [0], False)
    assert dispatch.next(waiting, (), {0, 1, 3}) is None


def test_a_retry_gets_a_process_of_its_own_and_a_call_of_its_own():
    dispatch = Dispatch(3, 3, [10] * 8)
    dispatch.update_timings([metrics()])
    assert dispatch.next(dispatch.ordered([1, 2, 4]), (), {0, 1}, retried={1}) == (2, [1], True)  # not the idle ones
    assert dispatch.next(dispatch.ordered([1, 2, 4]), {2}, {0, 1, 2}, retried={1}) == (1, [1], True)  # in place of one
    assert dispatch.next(dispatch.ordered([0, 1, 2, 4]), (), {0, 1}, retried={1}) == (0, [0], False)


def test_short_clients_share_a_call_from_the_second_round_on():
    dispatch, all_ = Dispatch(2, 2, [10] * 8), range(8)
    assert [len(clients) for now in played(dispatch, all_)[0] for _, clients in now] == [1] * 8
    dispatch.update_timings([metrics(1e-3)] * 8)
    assert played(dispatch, all_)[0] == [[(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7])]]
    dispatch.update_timings([metrics(1e-3), metrics(0.06), metrics(0.06)])
    assert [len(clients) for now in played(dispatch, all_)[0] for _, clients in now] == [1] * 8
    dispatch.update_timings([metrics(1e-3, CALL_BYTES // 4, CALL_BYTES // 4)])
    assert {len(clients) for now in played(dispatch, all_)[0] for _, clients in now} == {2}


def test_where_a_call_ended_with_its_process_each_client_gets_one_of_its_own_for_this_round():
    dispatch = Dispatch(2, 2, [10] * 8)
    dispatch.update_timings([metrics()])
    dispatch.isolate([0, 2])
    calls = {tuple(clients) for now in played(dispatch, range(8))[0] for _, clients in now}
    assert {(0,), (2,)} < calls
    assert max(map(len, calls)) > 1
    dispatch.update_timings([metrics()])
    assert {len(clients) for now in played(dispatch, range(8))[0] for _, clients in now} == {4}


def test_under_a_deadline_every_client_has_its_own_call():
    dispatch = Dispatch(2, 2, [10] * 8, several=False)
    dispatch.update_timings([metrics()])
    assert {len(clients) for now in played(dispatch, range(8))[0] for _, clients in now} == {1}
