"""The two drivers of a flow: they do its input and output, and hand it what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from django.dispatch import Signal

from ratelimit_app import snapshot_cache
from ratelimit_app.core.evaluation import Need, ScriptCall, StoreUnavailable
from ratelimit_app.store.gateway import async_gateway, gateway

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Announce:
    """Ask the driver to send a signal."""

    signal: Signal
    sender: Any
    arguments: dict[str, Any]


def run(flow: Generator[Any, Any, T], facts: Any = None) -> T:
    """Drive a flow in a thread."""
    try:
        step = next(flow)
        while True:
            try:
                answer = _perform(step, facts)
            except StoreUnavailable as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(flow: Generator[Any, Any, T], facts: Any = None) -> T:
    """Drive a flow in an event loop."""
    try:
        step = next(flow)
        while True:
            try:
                answer = await _aperform(step, facts)
            except StoreUnavailable as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _perform(step: Any, facts: Any) -> Any:
    if isinstance(step, ScriptCall):
        return gateway().call(step)
    if isinstance(step, Need):
        return snapshot_cache.current() if step.fact == "snapshot" else facts.learn(step.fact)
    return step.signal.send_robust(step.sender, **step.arguments)


async def _aperform(step: Any, facts: Any) -> Any:
    if isinstance(step, ScriptCall):
        return await async_gateway().call(step)
    if isinstance(step, Need):
        if step.fact == "snapshot":
            return snapshot_cache.known() or await asyncio.to_thread(snapshot_cache.current)
        return await facts.alearn(step.fact)
    return await step.signal.asend_robust(step.sender, **step.arguments)
