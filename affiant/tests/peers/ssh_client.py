"""An SSH client by asyncssh that jumps over a gateway. Tells all that the target's end of a command says;
of commands that run `at-once` nothing."""

import asyncio
import json
import sys

import asyncssh

port, host, user, token, how, *commands = sys.argv[1:]


async def main():
    gateway = asyncssh.connect(
        "127.0.0.1", int(port), username="coder", password=token, known_hosts=None, config=None
    )
    async with gateway as jump, jump.connect_ssh(
        host, username=user, known_hosts=None, client_keys=None, config=None
    ) as target:
        if how == "at-once":
            await asyncio.gather(*(target.run(command) for command in commands))
            return
        for command in commands:
            ran = await target.run(command)
            print(json.dumps([ran.exit_signal, ran.stdout, ran.stderr]))


asyncio.run(asyncio.wait_for(main(), 50))
