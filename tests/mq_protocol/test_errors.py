"""Every error crosses the wire, and says whether to retry and whether the outcome is known."""

from __future__ import annotations

import inspect

import grpc
import pytest

from mq_protocol import errors
from mq_protocol import mq_pb2 as pb

LEAVES = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.TritonMQError) and "code" in vars(cls)
]


def test_every_code_has_its_class() -> None:
    codes = {cls.code for cls in LEAVES}
    assert codes == set(pb.ErrorCode.values()) - {pb.OK}
    assert len(codes) == len(LEAVES) - 1  # the root stands in for INTERNAL


@pytest.mark.parametrize("cls", LEAVES)
def test_an_error_comes_back_as_it_went(cls: type[errors.TritonMQError]) -> None:
    sent = cls("topic 'x' is missing: create it")
    got = errors.from_wire(pb.Error.FromString(errors.to_wire(sent).SerializeToString()))
    assert str(got) == str(sent)
    assert got.code == sent.code
    assert (got.retriable, got.grpc_status) == (sent.retriable, sent.grpc_status) or cls is errors.TritonMQError


@pytest.mark.parametrize("cls", LEAVES)
def test_every_grpc_status_exists(cls: type[errors.TritonMQError]) -> None:
    assert hasattr(grpc.StatusCode, cls.grpc_status)


def test_who_leads_crosses_the_wire() -> None:
    got = errors.from_wire(errors.to_wire(errors.NotLeader("ask 3", 3, 9)))
    assert isinstance(got, errors.NotLeader)
    assert (got.leader, got.leader_epoch) == (3, 9)


def test_a_code_of_a_newer_broker_is_an_internal_error() -> None:
    assert type(errors.from_wire(pb.Error(code=999, message="new"))) is errors.InternalError  # type: ignore[arg-type]


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
    got = errors.from_wire(errors.to_wire(errors.OffsetOutOfRange("lost", next_offset)))
    assert isinstance(got, errors.OffsetOutOfRange)
    assert (str(got), got.next_offset) == ("lost", next_offset)
