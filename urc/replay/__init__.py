"""Replay of request traces through the cache: traces, workloads, the rule, reports."""
