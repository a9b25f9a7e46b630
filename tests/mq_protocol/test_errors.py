"""Every error crosses the wire, and says whether to retry and whether the outcome is known."""

from __future__ import annotations

import inspect

import grpc
import pytest

from mq_protocol import errors
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import ERROR_BYTES_MAX
from mq_protocol.wire.error_messages import code_of, from_wire, to_wire

FAMILIES = (errors.TritonMQError, errors.RefusedError, errors.RetriableError, errors.UnknownOutcome)
LEAVES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.TritonMQError) and cls not in FAMILIES
]


def test_every_code_has_its_class() -> None:
    codes = [code_of(cls("")) for cls in LEAVES]
    assert sorted(codes) == sorted(set(pb.ErrorCode.values()) - {pb.OK})


class Narrower(errors.LockLost):
    """As a package above may define one."""


def test_an_error_that_the_wire_does_not_know_goes_as_the_nearest_that_it_does() -> None:
    assert code_of(Narrower("")) == pb.LOCK_LOST
    assert code_of(errors.TritonMQError("")) == pb.INTERNAL
    assert type(from_wire(to_wire(Narrower("gone")))) is errors.LockLost


@pytest.mark.parametrize("cls", LEAVES)
def test_an_error_comes_back_as_it_went(cls: type[errors.TritonMQError]) -> None:
    sent = cls("topic 'x' is missing: create it")
    got = from_wire(pb.Error.FromString(to_wire(sent).SerializeToString()))
    assert str(got) == str(sent)
    assert type(got) is cls
    assert (got.retriable, got.grpc_status) == (sent.retriable, sent.grpc_status)


@pytest.mark.parametrize("cls", LEAVES)
def test_every_grpc_status_exists(cls: type[errors.TritonMQError]) -> None:
    assert hasattr(grpc.StatusCode, cls.grpc_status)


def test_who_leads_crosses_the_wire() -> None:
    got = from_wire(to_wire(errors.NotLeader("ask 3", 3, 9)))
    assert isinstance(got, errors.NotLeader)
    assert (got.leader, got.leader_epoch) == (3, 9)


def test_a_code_of_a_newer_broker_is_an_internal_error_and_goes_on_as_it_came() -> None:
    told = pb.Error(code=999, message="new", leader=3, retry_after_ms=7)  # type: ignore[arg-type]
    got = from_wire(told)
    assert isinstance(got, errors.InternalError)
    assert (str(got), code_of(got)) == ("new", pb.INTERNAL)
    assert to_wire(got) == told
    told.message = "x" * 2 * ERROR_BYTES_MAX
    assert len(to_wire(from_wire(told)).message) <= ERROR_BYTES_MAX


@pytest.mark.parametrize("cls", LEAVES)
def test_the_three_families_say_whether_the_outcome_is_known(cls: type[errors.TritonMQError]) -> None:
    if issubclass(cls, errors.RefusedError):
        assert cls.definite
        assert not cls.retriable
    elif issubclass(cls, errors.RetriableError):
        assert cls.definite
        assert cls.retriable
    else:
        assert not cls.definite


@pytest.mark.parametrize("next_offset", [-1, 0, 1 << 40])
def test_an_offset_out_of_range_says_where_to_go_on(next_offset: int) -> None:
    got = from_wire(to_wire(errors.OffsetOutOfRange("lost", next_offset)))
    assert isinstance(got, errors.OffsetOutOfRange)
    assert (str(got), got.next_offset) == ("lost", next_offset)
