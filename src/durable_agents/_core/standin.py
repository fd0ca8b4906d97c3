"""Stand-ins: what a framework's own method works with when one call in it is to be a step."""

from typing import Any


class StandIn:
    """Everything of the real object, its class too, but for what a subclass defines.

    Args:
        real: the object; what is set on the stand-in is set on it.
        own: attributes of the stand-in alone.
    """

    def __init__(self, real: Any, **own: Any) -> None:
        self.__dict__.update(own, real=real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self.__dict__["real"], name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.__dict__["real"])
