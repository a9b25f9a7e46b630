"""The console: pages that show a cluster, in a process of its own that knows the client alone.

`tritonmq console` serves it. To put it behind a login of your own, mount `mq_console.app(bootstrap)` in an ASGI
application. It needs the extra `tritonmq[console]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mq_client import Security
    from mq_console.serving import Console

__all__ = ["app"]


def app(
    bootstrap: str, *, security: Security | None = None, hide_values: bool = False, actions: bool = False
) -> Console:
    """An ASGI application that shows the cluster at `bootstrap`. Who may ask is up to whoever mounts it: it has no key,
    and checks no name by which it is called. It starts to look at the cluster at once; `close()` ends that.

    Raises `InvalidSetting` for a bootstrap that is no list of addresses, `ImportError` without the extra.
    """
    from mq_console.serving import Console
    from mq_console.views import Settings

    return Console(bootstrap, Settings(hide_values=hide_values, actions=actions), security)
