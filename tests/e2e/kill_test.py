#!/usr/bin/python3
"""kill -9 of every process under load: nothing hangs, nothing is wrong, nothing leaks, everything comes back.

Workers die every two seconds for twenty seconds, with two workers: no call may fail. The scheduler's and memmgr's deaths may
cost time but no call either; the gateway's own clients see UNAVAILABLE and repeat.
"""
import collections
import os
import random
import signal
import threading
import time

import grpc

import cluster
import kit
from cluster import Cluster

PB = cluster.ingot_messages()
DEADLINE = 10.0  # of a call, seconds
GRACE = 1.0      # how long after its deadline a call may end on this machine


class Load:
    """Threads that call Infer without pause and check each answer's bytes."""

    def __init__(self, running, callers=8, retry=False):
        self.running, self.retry = running, retry
        self.wanted = self.answers()
        self.outcomes, self.late, self.wrong = collections.Counter(), [], 0
        self.failures = []
        self.stopping, self.lock = threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self.caller, args=(i,), daemon=True) for i in range(callers)]

    def answers(self):
        with self.running.channel() as channel:
            infer = kit.unary(channel, "/ingot.v1.Inference/Infer", PB.InferResponse)
            return [infer(cluster.digit_request(PB, i)).outputs[0].data for i in range(10)]

    def caller(self, me):
        channel = self.running.channel()
        infer = kit.unary(channel, "/ingot.v1.Inference/Infer", PB.InferResponse)
        call = me
        while not self.stopping.is_set():
            i = call % 10
            call += 1
            begin = time.monotonic()
            try:
                # wait_for_ready: while the gateway is away, the call waits for it, within its deadline.
                response = infer(cluster.digit_request(PB, i), timeout=DEADLINE, wait_for_ready=self.retry)
                with self.lock:
                    self.outcomes["OK"] += 1
                    self.wrong += response.outputs[0].data != self.wanted[i]
            except grpc.RpcError as error:
                with self.lock:
                    self.outcomes[error.code().name] += 1
                    self.failures.append(f"{error.code().name}: {error.details()}")
                if self.retry:
                    channel.close()
                    channel = self.running.channel()
                    infer = kit.unary(channel, "/ingot.v1.Inference/Infer", PB.InferResponse)
            took = time.monotonic() - begin
            if took > DEADLINE + GRACE:
                with self.lock:
                    self.late.append(took)
        channel.close()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(DEADLINE + 5)
        self.hung = sum(thread.is_alive() for thread in self.threads)

    def served(self):
        with self.lock:
            return self.outcomes["OK"]

    def wait_served(self, more, seconds):
        """Until this many more calls were answered."""
        goal = self.served() + more
        self.running.wait(f"{more} more answers", seconds, lambda: self.served() >= goal)

    def check(self, allowed=()):
        print(f"# outcomes: {dict(self.outcomes)}")
        kit.expect_equal(self.hung, 0, "callers that hang")
        kit.expect(not self.late, f"calls that ended past their deadline: {self.late[:3]}")
        kit.expect_equal(self.wrong, 0, "wrong answers")
        others = {k: v for k, v in self.outcomes.items() if k != "OK" and k not in allowed}
        kit.expect(not others, f"failed calls: {others}, first: {self.failures[:2]}")


def leases(running):
    """What the ledger says is granted, by owner and kind; weights and channels included, idle memory not. A channel has
    two ends, and either may be the one that told memmgr of it."""
    def key(entry):
        ends = (entry["owner"], entry["label"]) if entry["kind"] != "weights" else (entry["label"],)
        return tuple(sorted(ends)), entry["kind"], entry["state"], entry["bytes"]

    return collections.Counter(key(e) for e in running.ledger()["entries"] if e["state"] != "idle")


def settle(running, before):
    """Until the ledger is back at its level."""
    running.wait(f"the ledger at its level {before}", 30, lambda: leases(running) == before)


def workers_die_under_load():
    with Cluster(workers=2) as running:
        load = Load(running)
        running.wait_ready(20)
        before = leases(running)
        with load:
            end, victim = time.monotonic() + 20, 0
            while time.monotonic() < end:
                next_kill = time.monotonic() + 2
                dead = running.kill("worker", victim)
                running.wait_ready(10, "worker", victim, not_pid=dead)
                load.wait_served(50, 10)
                victim = 1 - victim
                # The rhythm of the test, not a wait for an event: one kill every two seconds.
                time.sleep(max(0, next_kill - time.monotonic()))
        load.check()
        restarts = sum(p["restarts"] for p in running.status()["processes"])
        kit.expect(restarts >= 8, f"only {restarts} restarts")
        settle(running, before)


def one_dies(role, allowed=(), retry=False, times=5):
    with Cluster(workers=2) as running:
        load = Load(running, retry=retry)
        running.wait_ready(20)
        before = leases(running)
        with load:
            for _ in range(times):
                load.wait_served(100, 20)
                dead = running.kill(role)
                running.wait_ready(20, role, not_pid=dead)
                load.wait_served(100, 20)
        load.check(allowed)
        running.wait_ready(20)
        settle(running, before)


def scheduler_dies_under_load():
    one_dies("scheduler")


def memmgr_dies_under_load():
    one_dies("memmgr")


def gateway_dies_under_load():
    one_dies("gateway", allowed=("UNAVAILABLE",), retry=True)


def the_only_worker_dies():
    """Requests wait for it, within their deadline."""
    with Cluster(workers=1) as running:
        load = Load(running, callers=4)
        running.wait_ready(20)
        with load:
            for _ in range(5):
                load.wait_served(100, 20)
                dead = running.kill("worker")
                running.wait_ready(20, "worker", not_pid=dead)
        load.check()


def descriptors(pids):
    """Open files of each process."""
    return {f"{role}-{index}": len(os.listdir(f"/proc/{pid}/fd")) for (role, index), pid in pids.items()}


def several_die_at_once():
    """Two to all five of them, in any order, some while others are just coming back; nobody hangs, nothing is wrong, and
    afterwards nothing is left over, in the ledger or in open files. Only what is ready is killed: five deaths before
    READY would rightly stop the cluster."""
    rng = random.Random(20261201)
    with Cluster(workers=2) as running:
        load = Load(running, callers=6, retry=True)
        running.wait_ready(20)
        before, files = leases(running), descriptors(running.pids())
        with load:
            end = time.monotonic() + 15
            while time.monotonic() < end:
                ready = [p["pid"] for p in running.status()["processes"] if p["state"] == "ready"]
                for pid in rng.sample(ready, min(len(ready), rng.randint(2, 5))):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass  # it went with another one
                    time.sleep(rng.choice((0, 0, 0.05, 0.2)))
                # The rhythm of the test: sometimes they come back in between, sometimes not.
                time.sleep(rng.choice((0.02, 0.3, 1.2)))
            running.wait_ready(20)
            load.wait_served(100, 20)
        load.check(allowed=("UNAVAILABLE", "DEADLINE_EXCEEDED"))
        settle(running, before)
        pids = running.pids()  # once: whoever asks is a peer of the scheduler's bus for a while

        def level():
            now = descriptors(pids)
            return all(now[name] <= files[name] + 4 for name in files)

        running.wait(f"open files at their level {files}", 20, level)


cluster.main(several_die_at_once, workers_die_under_load, scheduler_dies_under_load, memmgr_dies_under_load,
             gateway_dies_under_load, the_only_worker_dies)
