"""What calls are answered by: each method found in the part of the broker that has it."""

from __future__ import annotations

from mq_protocol.methods import BROKER, PEER

_OF_LINKS = "link"
"""The links between brokers serve it themselves."""


class Services:
    """Owns nothing but the parts. Has a method for each row of `mq_protocol/methods.py`: the one of that name in one of
    the parts.

    Raises `LookupError` if no part has it, or if two have.
    """

    def __init__(self, *parts: object) -> None:
        attributes = {method.attribute for service in (BROKER, PEER) for method in service.methods.values()}
        for attribute in sorted(attributes - {_OF_LINKS}):
            owners = [part for part in parts if callable(getattr(type(part), attribute, None))]
            if len(owners) != 1:
                names = [type(owner).__name__ for owner in owners] or "no part of the broker"
                raise LookupError(f"{attribute} is to be a method of one part of the broker: {names} has it")
            setattr(self, attribute, getattr(owners[0], attribute))
