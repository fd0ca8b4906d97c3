"""The library's logger, `logging.getLogger("durable_agents")`, and how it tells of what fails again and again."""

import logging
import time

logger = logging.getLogger("durable_agents")

SAID_AGAIN = 30.0
"""Seconds between two lines about one trouble."""


class Trouble:
    """Something that is tried until it works: the log hears of it at first, now and then, and when it is over.

    Args:
        what: what does not work, as the log names it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = None
        self._said, self._is_known = -SAID_AGAIN, False

    def met(self, error: Exception, *, traceback: bool = False) -> None:
        """It failed once more. Trouble that comes and goes is said no more often than trouble that stays."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._said < SAID_AGAIN:
            return
        self._said, self._is_known = now, True
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        logger.warning(
            "%s fails and is tried again: %s", self._what, why, exc_info=error if traceback else None
        )

    def over(self) -> None:
        """It works."""
        if self._is_known and self._since is not None:
            logger.info("%s works again after %.1f s", self._what, time.monotonic() - self._since)
        self._since, self._is_known = None, False
