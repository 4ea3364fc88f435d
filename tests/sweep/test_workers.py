"""Processes that come and go under a sweep."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

from kvledger.sweep.workers import MOST_LOSSES, Lost, run_in_processes

from . import duties


def test_every_job_is_answered_once_by_index():
    jobs = [f"job {i}".encode() for i in range(20)]
    answers = dict(run_in_processes(jobs, duties.shout, workers=2))
    assert answers == {i: f"JOB {i}".encode() for i in range(20)}
    assert multiprocessing.active_children() == []


def test_without_jobs_no_process_is_started():
    assert list(run_in_processes([], duties.shout, workers=2)) == []


def test_the_cell_of_a_worker_that_dies_is_done_again(tmp_path):
    jobs = [str(tmp_path / name).encode() for name in "abc"]
    assert dict(run_in_processes(jobs, duties.die_once, workers=2)) == dict.fromkeys(range(3), b"done")
    assert [len((tmp_path / name).read_text().split()) for name in "abc"] == [2, 2, 2]


def test_a_worker_killed_from_outside_is_replaced_and_its_cell_done_again(tmp_path):
    mark = tmp_path / "mark"
    killed = []

    def kill_it_and_let_the_next_one_go():
        while not (found := list(tmp_path.glob("mark.*"))):
            time.sleep(0.01)
        killed.append(int(found[0].suffix[1:]))
        os.kill(killed[0], signal.SIGKILL)
        mark.touch()

    killer = threading.Thread(target=kill_it_and_let_the_next_one_go)
    killer.start()
    ((index, answer),) = run_in_processes([str(mark).encode()], duties.wait_for_mark, workers=1)
    killer.join()
    assert index == 0
    assert int(answer) != killed[0]


def test_a_cell_that_always_takes_its_worker_down_is_given_up_and_the_others_are_not():
    answers = dict(run_in_processes([b"a", b"die", b"b"], duties.die_when_told, workers=1))
    assert answers[0] == b"a"
    assert answers[2] == b"b"
    assert answers[1] == Lost(reason=f"its worker was lost {MOST_LOSSES} times, at last by SIGKILL (out of memory?)")


def test_a_worker_that_leaves_is_named_by_its_exit_code():
    ((_, answer),) = run_in_processes([b"x"], duties.leave, workers=1)
    assert answer.reason.endswith("with exit code 3")


def test_processes_end_when_nobody_wants_the_rest(tmp_path):
    answers = run_in_processes([b"x", str(tmp_path / "never").encode()], duties.shout, workers=2)
    next(answers)
    answers.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [1, 5])
def test_there_are_never_more_processes_than_jobs(workers, tmp_path):
    answers = run_in_processes([b"x", b"y"], duties.shout, workers=workers)
    next(answers)
    assert len(multiprocessing.active_children()) <= min(workers, 2)
    answers.close()
