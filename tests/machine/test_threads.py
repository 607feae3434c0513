import gc
import os
import signal
import threading
import time
import weakref
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from helpers import LIMIT_S
from simcse_cli.machine import threads as thread_pool
from simcse_cli.machine.threads import map_on_cores
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
def test_map_on_cores_keeps_the_order_and_shares_the_threads():
    together = threading.Barrier(
        2, timeout=LIMIT_S
    )  # passes only if two items are computed at the same time

    def compute(item):
        together.wait()
        return item, torch.get_num_threads()

    assert list(map_on_cores(compute, [3, 1])) == [(3, 2), (1, 2)]
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_one_item_is_computed_here_with_all_threads():
    def compute(_):
        return threading.current_thread(), torch.get_num_threads()

    assert list(map_on_cores(compute, [0])) == [(threading.current_thread(), 4)]


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize(("n_items", "n_each"), [(1, 4), (2, 2), (9, 1)])
def test_products_of_numpy_take_the_threads_of_their_item(n_items, n_each):
    def threads_of_numpy(_=None):
        return {each["num_threads"] for each in threadpool_info() if "numpy" in each["filepath"]}

    before = threads_of_numpy()
    assert (
        list(map_on_cores(threads_of_numpy, range(n_items)))
        == [{n_each} if before else set()] * n_items
    )
    assert threads_of_numpy() == before


@pytest.mark.usefixtures("four_threads")
def test_an_error_arrives_and_the_rest_is_left():
    taken = []

    def compute(item):
        taken.append(item)
        if item == 2:
            raise ValueError("item 2")
        time.sleep(0.01)
        return item

    with pytest.raises(ValueError, match="item 2"):
        list(map_on_cores(compute, range(10_000)))
    assert len(taken) < 10_000
    assert torch.get_num_threads() == 4
    assert list(map_on_cores(lambda item: item, range(100))) == list(range(100))


@pytest.mark.usefixtures("four_threads")
def test_an_error_of_another_thread_reaches_a_caller_who_waits_for_it(monkeypatch):
    caller, both_taken = threading.get_ident(), threading.Barrier(2, timeout=LIMIT_S)
    waits = threading.Event()

    class Watched(Future):
        def result(self, timeout=None):
            if not self.done():
                waits.set()
            return super().result(timeout)

    monkeypatch.setattr(thread_pool, "Future", Watched)

    def compute(item):
        both_taken.wait()
        if threading.get_ident() != caller:
            assert waits.wait(LIMIT_S)
            raise MemoryError("no room")
        return item

    with pytest.raises(MemoryError, match="no room"):
        list(map_on_cores(compute, range(2)))


@pytest.mark.usefixtures("four_threads")
def test_results_that_nobody_wants_are_not_computed():
    taken = []

    def compute(item):
        taken.append(item)
        time.sleep(0.01)

    results = map_on_cores(compute, range(10_000))
    next(results)
    results.close()
    assert len(taken) < 10_000
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_results_are_not_kept_once_they_are_taken():
    class Vectors:
        pass

    seen = []
    for vectors in map_on_cores(lambda _: Vectors(), range(50)):
        seen.append(weakref.ref(vectors))
        assert sum(own() is not None for own in seen) <= 2  # this one, and the loop's last
    del vectors
    gc.collect()
    assert not any(own() is not None for own in seen)


@pytest.mark.usefixtures("four_threads")
def test_the_caller_computes_too_and_helpers_stay():
    together = threading.Barrier(4, timeout=LIMIT_S)

    def compute(_):
        together.wait()
        return threading.current_thread()

    first, second = (set(map_on_cores(compute, range(4))) for _ in range(2))
    assert first == second
    assert threading.current_thread() in first
    assert len(first) == 4


@pytest.mark.usefixtures("four_threads")
def test_calls_from_inside_do_not_wait_for_each_other():
    def compute(item):
        return sum(map_on_cores(lambda inner: item + inner, range(2)))

    assert list(map_on_cores(compute, range(2))) == [1, 3]


def test_modes_of_the_caller_do_not_reach_the_items():
    @torch.inference_mode()
    def modes():
        return list(
            map_on_cores(
                lambda _: (torch.is_inference_mode_enabled(), torch.is_grad_enabled()), "ab"
            )
        )

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    assert modes() == [(False, True)] * 2
    torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("four_threads")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_gets_threads_of_its_own():
    list(map_on_cores(lambda item: item, range(4)))
    child = os.fork()
    if child == 0:
        signal.alarm(int(LIMIT_S))
        os._exit(0 if list(map_on_cores(lambda item: item, range(4))) == [0, 1, 2, 3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("four_threads")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_call_can_end_it():
    results = map_on_cores(lambda item: item, [0])
    next(results)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            results.close()
            code = 0 if list(map_on_cores(lambda item: item, range(4))) == [0, 1, 2, 3] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    results.close()


@pytest.mark.usefixtures("four_threads")
def test_a_pool_that_another_thread_has_just_taken_is_replaced(monkeypatch):
    class TakenAfterTheLook(list):
        def __bool__(self):
            return True  # as it was before the other thread took the last one

    monkeypatch.setattr(thread_pool, "_IDLE", {(3, 1): TakenAfterTheLook()})
    assert list(map_on_cores(lambda item: item, range(4))) == [0, 1, 2, 3]


@pytest.mark.usefixtures("four_threads")
def test_no_more_items_at_once_than_asked_for():
    running, most, lock = [], [], threading.Lock()

    def compute(item):
        with lock:
            running.append(item)
            most.append(len(running))
        threads = torch.get_num_threads()
        with lock:
            running.remove(item)
        return threads

    assert list(map_on_cores(compute, range(20), at_once=2)) == [2] * 20
    assert max(most) <= 2


def test_products_are_right_after_openmp_was_told_to_rest():
    a, b = torch.randn(300, 300), torch.randn(300, 300)
    expected = a @ b
    for _ in range(3):
        list(map_on_cores(lambda _: a @ b, [0, 1]))
        torch.testing.assert_close(a @ b, expected)


def test_a_system_without_that_call_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(thread_pool, "_openmp_pause", lambda: int)
    assert list(map_on_cores(lambda item: item, [1, 2])) == [1, 2]


def test_vectors_do_not_depend_on_the_number_of_threads(tiny_encoder, sentences):
    before = torch.get_num_threads()
    found = []
    for n_threads in (1, 2, 3):
        torch.set_num_threads(n_threads)
        found.append(encode(tiny_encoder, sentences, batch_tokens=32))
    torch.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.usefixtures("four_threads")
def test_calls_that_overlap_leave_the_numbers_of_threads_as_they_were(tiny_encoder, sentences):
    def numbers():
        return torch.get_num_threads(), [library["num_threads"] for library in threadpool_info()]

    texts = list(sentences) * 20
    expected, before = encode(tiny_encoder, texts, batch_tokens=64), numbers()
    started = threading.Barrier(8, timeout=LIMIT_S)
    found = [None] * 8

    def call(number):
        started.wait()
        found[number] = encode(tiny_encoder, texts, batch_tokens=64)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert numbers() == before
    for vectors in found:
        np.testing.assert_array_equal(vectors, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_openmp_rests_before_a_fork(monkeypatch):
    """Its threads do not exist in the child, which would wait for them for ever."""
    calls = []
    monkeypatch.setattr(thread_pool, "_openmp_pause", lambda: calls.append)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    assert calls == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize(
    "order", ["fork load encode", "load fork encode", "load encode fork", "load fork encode encode"]
)
def test_a_fork_encodes(order, tiny_model_dir, sentences):
    """In every order of loading, encoding and forking; ``FORKS=50 pytest -k fork_encodes`` forks 50 times."""
    texts = list(sentences) * 20
    expected = encode(load_encoder(tiny_model_dir, pooler="avg", device="cpu"), texts)
    loaded = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    if order == "load encode fork":
        encode(loaded, texts)
    for _ in range(int(os.environ.get("FORKS", "2"))):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(int(LIMIT_S))
                if order == "fork load encode":
                    loaded = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
                code = 0 if np.array_equal(encode(loaded, texts), expected) else 2
            finally:
                os._exit(code)
        if order == "load fork encode encode":  # the parent, while the child does
            np.testing.assert_array_equal(encode(loaded, texts), expected)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
