"""A web app that awaits a CPU-bound job inside a request.

    python -m taskhive examples/web_app.py             the worker: it takes the handlers of this file
    pip install starlette uvicorn
    uvicorn examples.web_app:app                       the web app, in another terminal
    curl 'localhost:8000/primes?below=2000000'

While a child of the worker counts, the web app's loop goes on serving others: it holds one connection
for all requests that wait, however many.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from taskhive import AsyncHive, ResultTimeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse

hive = AsyncHive()


@hive.handler(timeout=30, max_retries=0)
def primes_below(limit: int) -> int:
    if limit < 0:
        raise ValueError("there is no prime below zero")
    sieve = bytearray([1]) * max(2, limit)
    sieve[:2] = b"\0\0"
    for n in range(2, int(limit**0.5) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, len(sieve), n)))
    return sum(sieve[:limit])


async def primes(request: Request) -> JSONResponse:
    from starlette.responses import JSONResponse

    job = await primes_below.dispatch(int(request.query_params["below"]))
    try:
        return JSONResponse({"primes": await job.result(timeout=20)})
    except ValueError as error:  # what the handler raised, in another process
        return JSONResponse({"error": str(error)}, status_code=400)
    except ResultTimeout:  # the client asks again, with the id
        return JSONResponse({"job": job.id}, status_code=202)


def make_app() -> Starlette:
    # Only here: a worker that runs the handlers of this file needs no web framework.
    from starlette.applications import Starlette
    from starlette.routing import Route

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with hive:
            yield

    return Starlette(routes=[Route("/primes", primes)], lifespan=lifespan)


def __getattr__(name: str) -> Any:
    if name == "app":
        return make_app()
    raise AttributeError(name)
