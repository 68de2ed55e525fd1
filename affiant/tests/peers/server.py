"""An HTTPS server as services write them (aiohttp): files, an event stream, a WebSocket, and fakes of
the streaming APIs of OpenAI and Anthropic.

usage: server.py CERTIFICATE KEY DIRECTORY

A stream sends its next event only after the one before it was acknowledged by a request of its own,
so that a proxy that holds events back is found without a clock. Prints its port; ends with its stdin.
"""

import asyncio
import json
import resource
import ssl
import sys
from pathlib import Path

from aiohttp import WSMsgType, web

certificate, key, directory = sys.argv[1:]
files = Path(directory)
acknowledged: dict[str, asyncio.Event] = {}


async def hello(request):
    return web.Response(text=f"hello {request.query_string}")


async def put(request):
    with open(files / request.match_info["name"], "wb", buffering=0) as file:
        async for piece in request.content.iter_any():
            file.write(piece)
    return web.Response(status=201)


async def acknowledge(request):
    gate(request.query["id"], request.query["n"]).set()
    return web.Response(status=204)


def gate(stream, number):
    return acknowledged.setdefault(f"{stream}/{number}", asyncio.Event())


async def stream(request, identity, events):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number, event in enumerate(events):
        await response.write(event.encode())
        await gate(identity, number).wait()
    return response


async def sse(request):
    return await stream(request, request.query["id"], [f"data: {n}\n\n" for n in range(3)])


async def chat_completions(request):
    asked = await request.json()
    assert asked["stream"] is True, asked

    def chunk(delta, reason=None):
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        part = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return "data: " + json.dumps(part | {"choices": [choice]}) + "\n\n"

    words = [chunk({"content": word}) for word in ("one ", "two ", "three")]
    return await stream(request, asked["user"], [*words, chunk({}, "stop") + "data: [DONE]\n\n"])


async def messages(request):
    asked = await request.json()
    assert asked["stream"] is True, asked

    def event(kind, **more):
        return f"event: {kind}\ndata: {json.dumps({'type': kind} | more)}\n\n"

    def word(text):
        return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    message = {
        "id": "m1", "type": "message", "role": "assistant", "content": [], "model": "m",
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    start = event("message_start", message=message)
    start += event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    end = event("content_block_stop", index=0)
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    end += event("message_delta", delta=delta, usage={"output_tokens": 3})
    events = [start + word("one "), word("two "), word("three"), end + event("message_stop")]
    return await stream(request, asked["metadata"]["user_id"], events)


async def websocket(request):
    socket = web.WebSocketResponse(max_msg_size=0)
    await socket.prepare(request)
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
    return socket


async def main():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    application = web.Application(client_max_size=1 << 32)
    application.add_routes(
        [
            web.get("/hello", hello),
            web.put("/files/{name}", put),
            web.static("/files", files),
            web.post("/ack", acknowledge),
            web.get("/sse", sse),
            web.get("/ws", websocket),
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/messages", messages),
        ]
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, backlog=2048)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main())
