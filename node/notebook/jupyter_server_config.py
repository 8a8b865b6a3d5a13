"""JupyterLab's connection to a page: it sends again what a lost connection has swallowed.

Jupyter keeps a kernel's messages for a page once it knows that the connection is lost: a minute and a half after a
laptop has gone to sleep. Until then, they vanish in the buffers of ssh and TCP. A page answers the pings of its
WebSocket in the order in which it receives: what it has not answered for is kept here.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from jupyter_server.services.kernels.connection.channels import (  # type: ignore[import-not-found]
    ZMQChannelsWebsocketConnection,
)


class Unanswered:
    """The messages that a page may lack, oldest first: number, channel and content. owner: the page's connection."""

    def __init__(self) -> None:
        self.messages: deque[tuple[int, str, Any]] = deque()
        self.sent = 0  # the number of the last message
        self.is_asked = False  # whether a ping is on its way
        self.owner: Any = None


class ResendingConnection(ZMQChannelsWebsocketConnection):  # type: ignore[misc]
    """A connection of a page to a kernel. A page that connects again has the same session."""

    _is_lost = False

    async def prepare(self) -> None:
        """Ends the page's connection before this one, as Jupyter does at the end of a timeout."""
        page = self._pages.get(self.session.session)
        if page is not None and page.owner is not None:
            page.owner.disconnect()
        await super().prepare()

    def disconnect(self) -> None:
        """Has Jupyter keep further messages. It calls this again when the socket is closed."""
        if not self._is_lost:
            self._is_lost = True
            super().disconnect()

    @property
    def _pages(self) -> dict[str, Unanswered]:
        """By session; in the kernel's object, with which they end."""
        pages: dict[str, Unanswered] = self.kernel_manager.__dict__.setdefault("cluster_pages", {})
        return pages

    def nudge(self) -> Any:
        """Has Jupyter send what it kept, and then new messages, after those that the page may lack."""
        ready = super().nudge()
        ready.add_done_callback(lambda _: self._take_over())
        return ready

    def _take_over(self) -> None:
        self._page = self._pages.setdefault(self.session.session, Unanswered())
        self._page.owner, self._page.is_asked = self, False
        self.websocket_handler.set_nodelay(True)  # otherwise, a ping waits for the acknowledgement of the message
        self.websocket_handler.on_pong, self._on_pong = self._answer, self.websocket_handler.on_pong
        for _, channel, message in list(self._page.messages):
            super()._on_zmq_reply(self.channels[channel], message)
        self._ask()

    def _on_zmq_reply(self, stream: Any, message: Any) -> None:
        if self._page.owner is not self:  # the page has a newer connection, which has this message, too
            return
        self._page.sent += 1
        self._page.messages.append((self._page.sent, stream.channel, message))
        super()._on_zmq_reply(stream, message)
        self._ask()

    def _ask(self) -> None:
        """Sends a ping with the number of the last message behind it, unless a ping is on its way."""
        page, socket = self._page, self.websocket_handler.ws_connection
        if page.messages and not page.is_asked and socket is not None and not socket.is_closing():
            page.is_asked = True
            self.websocket_handler.ping(str(page.sent).encode())

    def _answer(self, data: bytes) -> None:
        self._on_pong(data)
        page = self._page
        if data.isdigit() and page.owner is self:
            while page.messages and page.messages[0][0] <= int(data):
                page.messages.popleft()
            page.is_asked = False
            self._ask()


c = get_config()  # type: ignore[name-defined]  # noqa: F821 -- Jupyter defines it
c.ServerApp.kernel_websocket_connection_class = ResendingConnection
