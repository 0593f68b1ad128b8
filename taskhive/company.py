"""The attempts that share a child: each in a thread of its own, or as a task on the child's loop.

They are told apart by their context: what they print, how far they are, and who is to stop. What they
take of memory cannot be told apart; CPU time is that of the thread, or of the steps of the task.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from taskhive import context, linux, voice
from taskhive.birth import Habits
from taskhive.errand import Errand
from taskhive.errors import SoftTimeout
from taskhive.mouth import Mouth
from taskhive.output import Lines

INTERRUPTS: dict[str, type[BaseException]] = {"soft": SoftTimeout, "cancelled": asyncio.CancelledError}


class Company:
    """Runs attempts beside each other until their child ends."""

    def __init__(self, mouth: Mouth, habits: Habits) -> None:
        self._mouth = mouth
        self._habits = habits
        self._lock = threading.Lock()
        self._stops: dict[int, Callable[[str], None]] = {}
        """How each attempt that runs is interrupted."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, errand: Errand) -> None:
        """Begin one more; its end is sent when it comes."""
        if inspect.iscoroutinefunction(errand.handler.function):
            asyncio.run_coroutine_threadsafe(self._task(errand), self._running_loop())
        else:
            name = f"{errand.job.queue}/{errand.job.id}"
            threading.Thread(target=self._thread, args=(errand,), name=name, daemon=True).start()

    def interrupt(self, number: int, word: str) -> None:
        """End one by an exception; whoever is in C code has it when that is over."""
        with self._lock:
            stop = self._stops.get(number)
            if stop is not None:
                stop(word)

    # In a thread

    def _thread(self, errand: Errand) -> None:
        me = threading.get_ident()
        voice.own.set(errand.voice)
        context.set_own(errand.job)
        began, used = time.perf_counter(), time.thread_time()
        try:
            self._enter(errand.number, lambda word: _raise_in(me, word))
            result = errand.call()
            if inspect.iscoroutine(result):
                result = asyncio.run_coroutine_threadsafe(result, self._running_loop()).result()
            self._leave(errand.number)
            errand.returned(result)
        except BaseException as error:  # noqa: BLE001 -- whatever a handler raises is its outcome
            self._leave_for_good(errand.number)
            errand.raised(error, __file__)
        self._over(errand, time.perf_counter() - began, time.thread_time() - used)

    # On the loop

    async def _task(self, errand: Errand) -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None
        words: list[str] = []

        def stop(word: str) -> None:
            words.append(word)
            loop.call_soon_threadsafe(task.cancel)

        voice.own.set(errand.voice)
        context.set_own(errand.job)
        began = time.perf_counter()
        steps: _Steps | None = None
        try:
            self._enter(errand.number, stop)
            steps = _Steps(errand.call())
            result = await steps
            self._leave(errand.number)
            errand.returned(result)
        except BaseException as error:  # noqa: BLE001 -- whatever a handler raises is its outcome
            self._leave(errand.number)
            if words and isinstance(error, asyncio.CancelledError):
                # The handler saw what every task sees that is cancelled; the worker is told why.
                error = INTERRUPTS[words[0]](*error.args).with_traceback(error.__traceback__)
            errand.raised(error, __file__)
        self._over(errand, time.perf_counter() - began, steps.cpu if steps is not None else 0.0)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                loops = self._loop.run_forever
                threading.Thread(target=loops, name="taskhive-loop", daemon=True).start()
            return self._loop

    # Both

    def _enter(self, number: int, stop: Callable[[str], None]) -> None:
        with self._lock:
            self._stops[number] = stop
            self._tell_title()

    def _leave(self, number: int) -> None:
        """From here on nothing interrupts it."""
        with self._lock:
            self._stops.pop(number, None)
            self._tell_title()

    def _leave_for_good(self, number: int) -> None:
        """The same for a thread, which an exception may hit wherever it is until it has left."""
        while True:
            try:
                self._leave(number)
                return
            except (SoftTimeout, asyncio.CancelledError):
                continue  # its handler had ended already, by something else

    def _tell_title(self) -> None:
        linux.set_title(f"taskhive child: {len(self._stops)} together")

    def _over(self, errand: Errand, wall: float, cpu: float) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Lines):
                stream.end(threading.get_ident())
        errand.end()
        # The peak is that of all of them together: said of nobody.
        self._mouth.send(errand.frame(wall, cpu, 0, not self._habits.are_kept()))


class _Steps:
    """A coroutine whose own steps are timed; those of tasks that it makes are not."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.cpu = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        step: Callable[[Any], Any] = steps.send
        value: Any = None
        while True:
            before = time.thread_time()
            try:
                wanted = step(value)
            except StopIteration as stop:
                return stop.value
            finally:
                self.cpu += time.thread_time() - before
            try:
                step, value = steps.send, (yield wanted)
            except BaseException as error:  # noqa: BLE001 -- it is the handler's to see
                step, value = steps.throw, error


def _raise_in(thread: int, word: str) -> None:
    """Raise the exception in another thread, at its next step in Python."""
    kind = ctypes.py_object(INTERRUPTS[word])
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)
