"""The library's logger: `logging.getLogger("durable_agents")`."""

import logging

logger = logging.getLogger("durable_agents")
