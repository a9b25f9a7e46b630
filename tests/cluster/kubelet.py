"""Plays Kubernetes for brokers of a test: does what deploy/kubernetes/tritonmq.yaml says, with processes.

A StatefulSet's rolling update is: from the last pod to the first, end it, start it anew, and wait until its readiness
probe succeeds. Nothing else is looked at before the next one is ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from mq_dev.local_cluster import BrokerProcess
from tests.cluster.harness import Cluster

MANIFEST: Final = Path(__file__).parents[2] / "deploy" / "kubernetes" / "tritonmq.yaml"
OF_THE_PLACE: Final = ("--id", "--listen", "--advertise", "--zookeeper", "--data", "--certs", "--http")
"""Where a broker is and what it is reached by: here these are the test's."""

POD: Final = "$POD_NAME.tritonmq:7400"
READY_S: Final = 300.0


def stateful_set() -> Mapping[str, Any]:
    """Its `spec`."""
    documents = yaml.safe_load_all(MANIFEST.read_text())
    found: Mapping[str, Any] = next(each for each in documents if each["kind"] == "StatefulSet")["spec"]
    return found


def container() -> Mapping[str, Any]:
    """The broker's."""
    found: Mapping[str, Any] = stateful_set()["template"]["spec"]["containers"][0]
    return found


def arguments() -> list[str]:
    """What the manifest gives each broker, without what depends on the place."""
    return [each for each in container()["args"] if each.partition("=")[0] not in OF_THE_PLACE]


class Kubelet:
    """Owns how brokers are started, asked and ended. Their arguments are the manifest's from the first start on."""

    def __init__(self, cluster: Cluster, more: Sequence[str] = ()) -> None:
        """`more`: arguments in place of the manifest's."""
        self._cluster = cluster
        self._grace_s: float = stateful_set()["template"]["spec"]["terminationGracePeriodSeconds"]
        for broker in cluster.brokers.values():
            place = _without(broker.arguments[1:], {each.partition("=")[0] for each in arguments()})
            broker.arguments = ["broker", *place, *arguments(), *more]

    def roll(self, stopped: threading.Event | None = None) -> Iterator[int]:
        """A rolling update: each pod that was replaced and is ready. `stopped`: it is given up then."""
        for number in sorted(self._cluster.brokers, reverse=True):
            self.end(number)
            self._cluster.brokers[number].start()
            if not self.until_ready(number, stopped):
                return
            yield number

    def end(self, number: int) -> None:
        """SIGTERM, and SIGKILL after the time of grace: that a broker needs it is a failure of the broker."""
        broker = self._cluster.brokers[number]
        broker.terminate()
        ended = broker.wait(self._grace_s)
        if not ended:
            broker.kill()
        assert ended, f"broker {number} did not end within {self._grace_s} s; {broker.last_words()}"
        assert broker.status == 0, f"broker {number} ended with {broker.status}; {broker.last_words()}"

    def until_ready(self, number: int, stopped: threading.Event | None = None) -> bool:
        """Whether its readiness probe succeeded. False: `stopped` was set."""
        probe = container()["readinessProbe"]
        deadline = time.monotonic() + READY_S
        while not self.probe("readinessProbe", number):
            broker = self._cluster.brokers[number]
            assert time.monotonic() < deadline, f"broker {number} is not ready; {broker.last_words()}"
            if (stopped or threading.Event()).wait(probe["periodSeconds"]):
                return False
        return True

    def probe(self, name: str, number: int) -> bool:
        """Run the probe as it is written: its words, a shell, its deadline."""
        probe, broker = container()[name], self._cluster.brokers[number]
        try:
            done = subprocess.run(
                _here(probe["exec"]["command"], broker, self._cluster.certs),
                timeout=probe["timeoutSeconds"],
                capture_output=True,
                check=False,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def _here(command: Sequence[str], broker: BrokerProcess, certs: Path | None) -> list[str]:
    """The probe's command at this machine's address of the pod. Its user is the test's."""
    shell, flag, words = command
    assert POD in words, f"a probe asks {POD}: {words}"
    here = words.replace(POD, broker.address)
    return [shell, flag, here.replace("--certs /certs", "" if certs is None else f"--certs {certs}")]


def _without(words: Sequence[str], options: set[str]) -> list[str]:
    """Command line of options with a value each, without those."""
    kept: list[str] = []
    left = iter(words)
    for word in left:
        if word in options:
            next(left)
        else:
            kept.append(word)
    return kept
