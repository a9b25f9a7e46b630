"""What the fixtures give: brokers that run, and what tests do with them."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mq_client import Admin
from mq_dev.local_cluster import LocalCluster

if TYPE_CHECKING:
    import pyarrow as pa


class Running:
    """Brokers that run. Owns `admin`, which is opened when it is first used.

    `bootstrap`: their addresses, for `Producer`, `Consumer`, `Queue`, Spark's option `bootstrap` and the like.
    """

    replicas = 1
    """Of a topic, unless `create_topic` is told otherwise."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin: Admin | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TritonMQ at {self.bootstrap}>"

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self.bootstrap)
        return self._admin

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replicas: int | None = None,
        schema: pa.Schema | str | None = None,
        **settings: Any,
    ) -> str:
        """Create a topic, and return its name: a new one unless `name` is given. Its records are kept in memory unless
        `durability` is given, since a test does not need them for longer. The rest, and the errors, are those of
        `Admin.create_topic`."""
        name = name or f"test-{uuid.uuid4().hex[:12]}"
        settings.setdefault("durability", "memory")
        copies = self.replicas if replicas is None else replicas
        self.admin.create_topic(name, partitions=partitions, replicas=copies, schema=schema, **settings)
        return name

    def close(self) -> None:
        """Close `admin`. The brokers run on."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None


class RunningCluster(Running):
    """Three brokers, with ids 1 to 3, that a test may kill."""

    replicas = 3

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster.bootstrap)
        self._cluster = cluster

    def kill(self, broker: int) -> None:
        """End this broker at once (SIGKILL). Clients go on with the others. Raises `ValueError` for an id that no
        broker has, `ClusterFailed` if it does not run."""
        self._cluster.kill(self._known(broker))

    def restart(self, broker: int) -> None:
        """Start a broker that was killed on the data that it left. Returns once it serves, and the others that run know
        of it."""
        self._start([self._known(broker)])

    def mend(self) -> None:
        """Start every broker that does not run. Returns once all serve, and know of each other."""
        self._start([broker for broker, process in self._cluster.brokers.items() if process.pid is None])

    def _start(self, killed: list[int]) -> None:
        serving = [broker for broker, process in self._cluster.brokers.items() if process.pid is not None]
        for broker in killed:
            self._cluster.restart(broker, wait=False)
        self._cluster.wait_until_serving(serving + killed)

    def _known(self, broker: int) -> int:
        if broker not in self._cluster.brokers:
            raise ValueError(f"there is no broker {broker!r}: the ids are {', '.join(map(str, self._cluster.brokers))}")
        return broker
