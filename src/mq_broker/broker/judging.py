"""Who may do what at this process, and who asks: the parts that a broker and a proxy have alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mq_broker.broker.administration.rights.acls import Acls
from mq_broker.broker.administration.rights.floor import Floor
from mq_broker.broker.administration.rights.quotas import QuotaSettings
from mq_broker.broker.config import BrokerConfig
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.coordination.service import CoordinationService
from mq_broker.rpc.gate import Gate
from mq_broker.security import https
from mq_broker.security.audit import Audit
from mq_broker.security.authenticating import ApiTokens, Authenticator, added
from mq_broker.security.authority import Authority
from mq_broker.security.oidc import Keys, OidcTokens
from mq_broker.security.quotas import Quotas
from mq_protocol.access.quotas import SECURED
from mq_protocol.errors import StorageFailed

AUDIT_LOG: Final = "audit.log"
"""In the data directory."""


class Judging:
    """Owns the rules as last read, the gate that goes by them, and the audit log (None: nothing is judged). Tells
    `cluster` what its members must offer."""

    def __init__(self, config: BrokerConfig, coordination: CoordinationService, cluster: Cluster) -> None:
        self._config = config
        self._cluster = cluster
        self.quotas = Quotas(SECURED if config.judges and config.certs is not None else None)
        self.authority = Authority(on=config.judges, superusers=config.superusers)
        self.audit: Audit | None = None
        if self.authority.on:
            self.audit = Audit(config.data_dir / AUDIT_LOG, config.broker, reads=config.audit_reads)
        named = config.certs is not None
        self.quota_settings = QuotaSettings(coordination, self.quotas, self.audit, named=named)
        self.floor = Floor(lambda: coordination.access, cluster.read_again)
        others = self.floor.taken, self.quota_settings.taken
        self.acls = Acls(coordination, self.authority, self.audit, others)
        self.quota_settings.refresh = self.floor.read = self.acls.refresh
        cluster.demanding = self.floor
        self.gate = Gate(self.authority, self.audit, self.quotas)

    def authenticators(self) -> list[Authenticator]:
        """What knows the tokens that clients show."""
        config = self._config
        found: list[Authenticator] = [ApiTokens(self.authority)]
        if (issuer := config.issuer) is not None:
            tls = https.trusting(config.oidc_ca)
            found.append(OidcTokens(issuer, Keys(issuer, lambda address: https.get(address, tls))))
        return [*found, *map(added, config.authenticators)]

    async def begin(self, address: str, spawn: Callable[..., object]) -> None:
        """Before anybody is served at `address`. Raises `CoordinationUnavailable`, `InvalidSetting` if this process is
        below the security floor, and `StorageFailed`."""
        await self.acls.refresh()  # whether rights are judged or not: there may be quotas, and a floor
        self.floor.check_here(self._cluster.me)
        self.floor.check_nodes()
        if self.audit is not None:
            try:
                self.audit.start()
            except OSError as error:
                raise StorageFailed(f"the audit log cannot be written: {error}; repair the disk") from error
            self.audit.event("start", f"{self._config.role} serves at {address}")
        following = self.acls.following(self._cluster.security_changed)
        spawn(following.run(), following.name)
