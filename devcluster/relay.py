"""The process behind a forward: it takes connections outside the node's network and passes them to one inside.

    python -m devcluster.relay DESCRIPTOR NAMESPACE HOST PORT

DESCRIPTOR is a listening socket that the parent made outside; a socket stays in the namespace it was made in, so this
process can go inside itself and make all further ones there. Every connection is a new one inside too: the cluster's
proxy chooses an endpoint for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from pathlib import Path

from devcluster import netns

CHUNK_BYTES = 1 << 16


async def relay(outside: socket.socket, host: str, port: int) -> None:
    """Serve for ever."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(host, port)
        except OSError:
            _break(writer)
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, inner_writer))
                both.create_task(_copy(inner_reader, writer))
        except* OSError:
            # One side broke: the other must see a broken connection, not a clean end.
            _break(writer)
            _break(inner_writer)
        else:
            writer.close()
            inner_writer.close()

    server = await asyncio.start_server(accepted, sock=outside)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


def _break(writer: asyncio.StreamWriter) -> None:
    # Closing without lingering resets the connection: socket(7), SO_LINGER on, zero seconds. The side that broke first
    # has no socket any more.
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def main() -> None:
    descriptor, namespace, host, port = sys.argv[1:]
    outside = socket.socket(fileno=int(descriptor))
    netns.join(Path(namespace))
    asyncio.run(relay(outside, host, int(port)))


if __name__ == "__main__":
    main()
