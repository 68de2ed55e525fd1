"""One job by requests, httpx or aiohttp, set up by the environment alone.

usage: client.py LIBRARY BASE FILE NAME hello|files|sse|ws...

Prints one line per step; the test knows what has to stand there.
"""

import asyncio
import hashlib
import os
import ssl
import sys

library, base, file, name, *steps = sys.argv[1:]
content = open(file, "rb").read()
stored = f"{base}/files/{name}"


def pieces():
    for at in range(0, len(content), 65536):
        yield content[at : at + 65536]


def digest(body):
    return hashlib.sha256(body).hexdigest()


def with_requests():
    import requests

    session = requests.Session()
    for step in steps:
        if step == "hello":
            answer = session.get(f"{base}/hello", params={"by": "requests"})
            print("hello", answer.status_code, answer.text)
        elif step == "files":
            print("put", session.put(stored, data=pieces()).status_code)
            answer = session.get(stored)
            print("get", answer.status_code, digest(answer.content))
        elif step == "sse":
            answer = session.get(f"{base}/sse", params={"id": name}, stream=True)
            for line in answer.iter_lines(chunk_size=1):
                if line:
                    number = line.split()[1].decode()
                    session.post(f"{base}/ack", params={"id": name, "n": number})
                    print("event", number)


def with_httpx():
    import httpx

    version2 = os.environ.get("HTTP2") == "1"
    with httpx.Client(http2=version2, timeout=60) as client:
        for step in steps:
            if step == "hello":
                answer = client.get(f"{base}/hello", params={"by": "httpx"})
                print("hello", answer.status_code, answer.text)
            elif step == "files":
                print("put", client.put(stored, content=pieces()).status_code)
                answer = client.get(stored)
                print("get", answer.status_code, digest(answer.content))
            elif step == "sse":
                with client.stream("GET", f"{base}/sse", params={"id": name}) as answer:
                    for line in answer.iter_lines():
                        if line:
                            number = line.split()[1]
                            client.post(f"{base}/ack", params={"id": name, "n": number})
                            print("event", number)


async def with_aiohttp():
    import aiohttp

    tls = ssl.create_default_context()
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(trust_env=True, connector=connector) as session:
        for step in steps:
            if step == "hello":
                async with session.get(f"{base}/hello", params={"by": "aiohttp"}) as answer:
                    print("hello", answer.status, await answer.text())
            elif step == "files":
                async with session.put(stored, data=open(file, "rb")) as answer:
                    print("put", answer.status)
                async with session.get(stored) as answer:
                    print("get", answer.status, digest(await answer.read()))
            elif step == "sse":
                async with session.get(f"{base}/sse", params={"id": name}) as answer:
                    async for line in answer.content:
                        if line.strip():
                            number = line.split()[1].decode()
                            query = {"id": name, "n": number}
                            await (await session.post(f"{base}/ack", params=query)).read()
                            print("event", number)
            elif step == "ws":
                async with session.ws_connect(f"{base}/ws", max_msg_size=0) as socket:
                    await socket.send_str("text")
                    print("ws", (await socket.receive()).data)
                    await socket.send_bytes(content)
                    print("ws", digest((await socket.receive()).data))


if library == "aiohttp":
    asyncio.run(with_aiohttp())
else:
    {"requests": with_requests, "httpx": with_httpx}[library]()
