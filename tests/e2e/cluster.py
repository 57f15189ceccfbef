"""A real cluster for a test: started by `ingot up --detach` in a run directory of its own, stopped at the end.

    with Cluster(models, workers=2) as cluster:
        infer = cluster.infer()
        cluster.kill("worker", 0)
        cluster.wait_ready(10)

Every wait has a bound and says what it waited for. The programs are those of $INGOT_BIN.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "clients"))
import kit  # noqa: E402

BIN = pathlib.Path(os.environ.get("INGOT_BIN", ROOT / "build" / "release" / "bin"))
DEMO_MODELS = ROOT / "deploy" / "demo" / "models"
START_SECONDS = 60


class Cluster:
    def __init__(self, models=DEMO_MODELS, workers=1, args=()):
        self.models, self.workers, self.args = models, workers, list(args)
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ingot-e2e-"))
        self.run_dir = self.dir / "run"

    def __enter__(self):
        done = self.ingot("up", "--models", self.models, "--workers", self.workers, "--grpc", "127.0.0.1:0",
                          "--http", "127.0.0.1:0", "--plaintext", "--detach", *self.args, check=False)
        if done.returncode:
            self.show_logs()
            shutil.rmtree(self.dir, ignore_errors=True)
            raise kit.Failed(f"ingot up failed with {done.returncode}:\n{done.stdout}{done.stderr}")
        self.address = self.addresses()["grpc"]
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            self.show_logs()
        self.ingot("down", check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    def show_logs(self):
        for log in sorted(self.run_dir.glob("log/*")):
            if log.is_file():
                tail = log.read_text(errors="replace").splitlines()[-15:]
                print(f"--- {log.name}", *tail, sep="\n", file=sys.stderr)

    def ingot(self, command, *args, check=True):
        line = [BIN / "ingot", command, "--run-dir", self.run_dir, *args]
        done = subprocess.run([str(a) for a in line], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=START_SECONDS)
        if check and done.returncode:
            raise kit.Failed(f"ingot {command} failed with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def addresses(self):
        return json.loads((self.run_dir / "gateway.json").read_text())

    def status(self):
        return json.loads(self.ingot("status", "--json", check=False).stdout)

    def process(self, role, index=0):
        for process in self.status()["processes"]:
            if (process["role"], process["index"]) == (role, index):
                return process
        raise kit.Failed(f"no {role} {index} in ingot status")

    def pids(self):
        return {(p["role"], p["index"]): p["pid"] for p in self.status()["processes"]}

    def ledger(self):
        return json.loads(self.ingot("mem", "--json").stdout)

    def kill(self, role, index=0):
        """kill -9; returns the pid that died. Other processes are never touched: the pid is the supervisor's child."""
        pid = self.process(role, index)["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait(self, what, seconds, condition):
        """Polls condition() until it is true; a bounded wait for an event that only a query can show."""
        end = time.monotonic() + seconds
        last = None
        while time.monotonic() < end:
            try:
                last = condition()
                if last:
                    return last
            except (kit.Failed, KeyError, ValueError, OSError, grpc.RpcError) as error:
                last = error
            time.sleep(0.02)
        raise kit.Failed(f"not within {seconds} s: {what} (last: {last!r})")

    def wait_ready(self, seconds, role=None, index=0, not_pid=None):
        """Until every process (or that one, with another pid than not_pid) is ready."""

        def ready():
            processes = self.status()["processes"]
            if role:
                processes = [p for p in processes if (p["role"], p["index"]) == (role, index)]
            return processes and all(p["state"] == "ready" and p["pid"] != not_pid for p in processes)

        self.wait(f"{role or 'every process'} ready", seconds, ready)

    def channel(self, **options):
        limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        return grpc.insecure_channel(self.addresses()["grpc"], limits + list(options.items()))


def ingot_messages():
    return kit.compile_protos([(str(ROOT / "proto"), "ingot.proto")])[0]


def digit(i):
    """Sample digit i as (shape, bytes)."""
    _, shape, data = kit.load_npy(ROOT / "deploy" / "demo" / "samples" / f"digit-{i}.npy")
    return shape, data


def digit_request(pb, i):
    shape, data = digit(i)
    request = pb.InferRequest(model="digits")
    request.inputs.add(name="image", datatype="FP32", shape=shape, data=data)
    return request


def main(*checks):
    """Runs the checks as a test program; each makes its own cluster."""
    kit.run(checks, sys.argv[1] if len(sys.argv) > 1 else None)
