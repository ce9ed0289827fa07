"""The two drivers of a flow: they do its input and output, and hand it what went wrong."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ratelimit_app import local_cache, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.asking import Need
from ratelimit_app.core.calls import ScriptCall, StoreUnavailable
from ratelimit_app.store.gateway import async_gateway, gateway
from ratelimit_app.store.health import health

if TYPE_CHECKING:
    from collections.abc import Generator

    from django.dispatch import Signal

T = TypeVar("T")
FIRST_LOOK = 0.005  # seconds between two looks for a process's first snapshot


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
                answer = _call(step) if type(step) is ScriptCall else _perform(step, facts)
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
    if isinstance(step, Need):
        return snapshot_cache.current() if step.fact == "snapshot" else facts.learn(step.fact)
    return step.signal.send_robust(step.sender, **step.arguments)


def _call(call: ScriptCall) -> Any:
    try:
        reply = gateway().call(call)
    except StoreUnavailable as error:
        if signal := health.failed(error):
            signal.send_robust(health, alias=conf.cache, error=str(error))
        raise
    if health.degraded and (signal := health.answered()):
        local_cache.local().outage.clear()
        # Where Redis was read and not written, no refresh has seen the outage.
        snapshot_cache.restorer.note()
        signal.send_robust(health, alias=conf.cache)
    return reply


async def _aperform(step: Any, facts: Any) -> Any:
    if isinstance(step, ScriptCall):
        return await _acall(step)
    if isinstance(step, Need):
        if step.fact == "snapshot":
            return await _asnapshot()
        return await facts.alearn(step.fact)
    return await step.signal.asend_robust(step.sender, **step.arguments)


async def _asnapshot() -> Any:
    """Wait for a process's first snapshot without a thread for each task that waits."""
    deadline = time.monotonic() + conf.store_timeout
    while not snapshot_cache.is_settled() and time.monotonic() < deadline:  # noqa: ASYNC110 - a thread sets it
        await asyncio.sleep(FIRST_LOOK)
    return snapshot_cache.current(wait_s=0.0)


async def _acall(call: ScriptCall) -> Any:
    try:
        reply = await async_gateway().call(call)
    except StoreUnavailable as error:
        if signal := health.failed(error):
            await signal.asend_robust(health, alias=conf.cache, error=str(error))
        raise
    if health.degraded and (signal := health.answered()):
        local_cache.local().outage.clear()
        # Where Redis was read and not written, no refresh has seen the outage.
        snapshot_cache.restorer.note()
        await signal.asend_robust(health, alias=conf.cache)
    return reply
