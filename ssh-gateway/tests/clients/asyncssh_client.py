"""A jump, commands and sftp by asyncssh."""

import asyncio
import sys

import asyncssh

port, key, user, root, known_hosts = sys.argv[1:]


async def main():
    async with asyncssh.connect(
        "127.0.0.1",
        int(port),
        username="coder",
        client_keys=[key],
        known_hosts=known_hosts,
        config=None,
    ) as gateway:
        async with gateway.connect_ssh(
            "t", username=user, known_hosts=known_hosts, client_keys=None, config=None
        ) as target:
            ran = await target.run("cat; echo err >&2; exit 7", input="in")
            assert (ran.stdout, ran.stderr, ran.exit_status) == ("in", "err\n", 7), ran
            several = await asyncio.gather(*(target.run(f"echo {n}") for n in range(8)))
            assert [ran.stdout for ran in several] == [f"{n}\n" for n in range(8)]
            # The terminal's size follows the client's.
            resized = await target.create_process(
                "trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.05; done",
                term_type="vt100",
                term_size=(80, 24),
            )
            await resized.stdout.readline()
            resized.change_terminal_size(100, 40)
            ran = await resized.wait()
            assert ("40 100" in ran.stdout, ran.exit_status) == (True, 5), ran
            async with target.start_sftp_client() as sftp:
                await sftp.put(f"{root}/here", f"{root}/there")
                await sftp.get(f"{root}/there", f"{root}/back")
    print("done")


asyncio.run(asyncio.wait_for(main(), 50))
