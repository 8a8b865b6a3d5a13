"""`cluster watch --web`: a page that is served to this machine alone, to whoever knows the token in its address."""

import asyncio
import html
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from aiohttp import web

from foundation.errors import ClusterError

REFRESH_S = 5
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Content-Type": "text/html; charset=utf-8",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def serve(render: Callable[[], tuple[str, bool]], opened: Callable[[str], None]) -> None:
    """Serves a page on a free port of the loopback address, until it is cancelled. Raises OSError.

    render: returns the page, and whether it is final. It is called in a thread, at most every REFRESH_S; its error is
    the page. opened: gets the page's URL.
    """
    path, lock = f"/{secrets.token_urlsafe(24)}/", asyncio.Lock()
    page, is_final, due_at = "", False, 0.0

    async def answer(_: web.Request) -> web.Response:
        nonlocal page, is_final, due_at
        async with lock:
            if not is_final and time.monotonic() >= due_at:
                try:
                    page, is_final = await _call_in_thread(render)
                except ClusterError as error:
                    page = f"<!doctype html><meta charset=utf-8><title>cluster</title><pre>{html.escape(str(error))}"
                due_at = time.monotonic() + REFRESH_S
        refresh = {} if is_final else {"Refresh": str(REFRESH_S)}
        return web.Response(body=page.encode("utf-8", "replace"), headers=HEADERS | refresh)

    app = web.Application()
    app.router.add_get(path, answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        opened(f"http://127.0.0.1:{runner.addresses[0][1]}{path}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def _call_in_thread(render: Callable[[], tuple[str, bool]]) -> tuple[str, bool]:
    """Calls it in a daemon thread: Ctrl-C would wait for asyncio's own threads, such as for a head without answer."""
    done: Future[tuple[str, bool]] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(render())
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)
