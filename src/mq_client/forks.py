"""What gRPC does when this process forks: nothing. Importing mq_client sees to that, before gRPC is imported.

gRPC's handlers of forks start its threads anew in every child. PySpark starts Java by `subprocess` with a `preexec_fn`,
and that is a fork: while the child closes the files that it inherited, those threads find their sockets gone and abort
it. About two in a hundred such children died while a producer was at work, and to the user PySpark then fails with
JAVA_GATEWAY_EXITED.

The price: a process that is forked, and does not become another program, cannot use gRPC if its parent had used it by
then. It is told so (`check_usable`), where it would wait for ever. One whose parent had only imported gRPC can.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Final

from mq_client.errors import InvalidRequest

VARIABLE: Final = "GRPC_ENABLE_FORK_SUPPORT"
_ON: Final = ("1", "true", "yes", "on", "t", "y")

_used_here = False
_used_before_the_fork = False


def leave_children_alone() -> None:
    """Turn gRPC's handlers of forks off, unless the environment already says what they are to do. To be called before
    anything imports gRPC, which reads the variable once: if it is too late, a warning says what to do instead.
    """
    if VARIABLE in os.environ:
        return
    if "grpc" in sys.modules:
        warnings.warn(
            "grpc was imported before mq_client: now and then gRPC will abort a child process that this one starts "
            f"(PySpark then says JAVA_GATEWAY_EXITED). Import mq_client first, or set {VARIABLE}=0 in the environment",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    os.environ[VARIABLE] = "0"


def note_used() -> None:
    """This process uses gRPC from now on."""
    global _used_here
    _used_here = True


def check_usable() -> None:
    """Raises `InvalidRequest` in a process that cannot use gRPC, since it was forked from one that did."""
    if _used_before_the_fork and os.environ.get(VARIABLE, "1").lower() not in _ON:
        raise InvalidRequest(
            "this process was forked from one in which clients of TritonMQ were in use, and cannot use them: start it "
            "anew (multiprocessing.get_context('spawn')), or fork before the first client is used"
        )


def _after_fork() -> None:
    global _used_here, _used_before_the_fork
    _used_before_the_fork = _used_before_the_fork or _used_here
    _used_here = False


os.register_at_fork(after_in_child=_after_fork)
