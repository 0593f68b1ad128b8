"""Does for a child what it may ask of the server; what a child says is checked as a user's input is."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

from taskhive import frames, relay, units
from taskhive.commands import Commands
from taskhive.errors import ServerRefused, TaskHiveError
from taskhive.exchanger import Runner
from taskhive.jobs import JobState
from taskhive.slot import Slot


class Answers:
    """One task per question; those of a child that is gone are dropped."""

    def __init__(self, runner: Runner, commands: Commands, tell: Callable[[Slot, bytes], None]) -> None:
        self._runner = runner
        self._commands = commands
        self._tell = tell
        self._tasks: dict[int, set[asyncio.Task[None]]] = {}

    def asked(self, slot: Slot, number: int, verb: str, args: list[Any]) -> None:
        """Answer in a while."""
        task = asyncio.get_running_loop().create_task(self._answer(slot, number, verb, args))
        mine = self._tasks.setdefault(slot.number, set())
        mine.add(task)
        task.add_done_callback(mine.discard)

    def forget(self, slot: int) -> None:
        """The child is gone: nobody waits for its answers."""
        for task in self._tasks.pop(slot, ()):
            task.cancel()

    async def close(self) -> None:
        """Drop all that is not answered."""
        tasks = [task for mine in self._tasks.values() for task in mine]
        for slot in list(self._tasks):
            self.forget(slot)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, slot: Slot, number: int, verb: str, args: list[Any]) -> None:
        try:
            answer: Any = await self._runner.run(self._flow(verb, args))
        except TaskHiveError as error:
            answer = error
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            answer = ServerRefused(f"{verb} was asked for with wrong arguments: {error}")
        try:
            data = pickle.dumps(answer)
        except (pickle.PicklingError, TypeError, AttributeError):
            data = pickle.dumps(ServerRefused(str(answer)))
        self._tell(slot, frames.answer(number, data))

    def _flow(self, verb: str, args: list[Any]) -> Any:
        """The flow a child asked for."""
        if verb not in relay.OPERATIONS:
            raise ValueError(f"no such operation: {verb}")
        *words, named = args
        if words:
            units.queue_name(words[0])
        match verb:
            case "dispatch":
                words[1] = relay.items(words[1])
            case "settle":
                words[1] = relay.settle(words[1])
            case "renew":
                words[1] = relay.renewal(words[1])
            case "page" | "purge":
                words[1] = JobState(words[1])
            case "matching":
                words[1] = tuple(words[1])
        return getattr(self._commands, verb)(*words, **named)
