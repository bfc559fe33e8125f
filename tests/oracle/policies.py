"""The order in which leaves are evicted: the smallest tuple goes first."""

from tests.oracle.components import FULL


def score(policy: str, node, **params) -> tuple:
    last_access = node.access[FULL]
    match policy:
        case "lru":
            return (last_access,)
        case "mru":
            return (-last_access,)
        case "fifo":
            return (node.created,)
        case "filo":
            return (-node.created,)
        case "lfu":
            return (node.hit_count, last_access)
        case "priority":
            return (node.priority, last_access)
        case "slru":
            return (node.hit_count >= params.get("protected_hits", 2), last_access)
        case "tlru":
            keep = max(node.longest + params["next_prompt"] - params["threshold"], 0)
            return (0 if node.start >= keep else 1, last_access)
    raise ValueError(policy)
