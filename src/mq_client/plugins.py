"""What installed packages offer by name: entry points of the groups `tritonmq.partitioners` and
`tritonmq.serializers`."""

from __future__ import annotations

from importlib.metadata import entry_points

from mq_client.errors import InvalidSetting


def plugin_names(group: str) -> list[str]:
    """The names that there are, in order."""
    return sorted(entry_points(group=group).names)


def load_plugin(group: str, name: str) -> object | None:
    """What goes by that name, imported; None if nothing does. Raises `InvalidSetting` if several do, or it cannot be
    imported."""
    found = list(entry_points(group=group, name=name))
    if not found:
        return None
    if len({point.value for point in found}) > 1:
        packages = ", ".join(sorted(point.dist.name for point in found if point.dist is not None))
        raise InvalidSetting(
            f"{name!r} is offered by several packages under {group}: {packages}; uninstall all but one"
        )
    try:
        loaded: object = found[0].load()
    except Exception as error:
        raise InvalidSetting(
            f"{name!r} of {group} cannot be imported ({found[0].value}): {type(error).__name__}: {error}"
        ) from error
    return loaded
