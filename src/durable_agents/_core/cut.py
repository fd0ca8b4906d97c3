"""Cuts: places in a framework's code where our own stands in a durable run, and nowhere else."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .context import RUN


def cut(owner: Any, name: str, durable: Callable[..., Any]) -> None:
    """Call `durable(native, …)` in the place of a function or method inside a durable run; outside the native one.

    It stays for the life of the process.

    Args:
        owner: the class or module.
        durable: is given the native function and its arguments, with `self` if it is a method.
    """
    native = inspect.getattr_static(owner, name)
    if not inspect.isfunction(native):
        raise TypeError(f"{owner.__name__}.{name} is a {type(native).__name__}, and cannot be cut")
    if inspect.iscoroutinefunction(native):  # a framework may ask whether it is one

        @functools.wraps(native)
        async def replaced(*args: Any, **kwargs: Any) -> Any:
            return await (native(*args, **kwargs) if RUN.get() is None else durable(native, *args, **kwargs))
    else:

        @functools.wraps(native)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return native(*args, **kwargs) if RUN.get() is None else durable(native, *args, **kwargs)

    setattr(owner, name, replaced)
