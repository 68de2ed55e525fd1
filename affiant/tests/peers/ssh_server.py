"""An SSH server by asyncssh. Its two users log in by one method each; a command tells their passwords.
`end NAME` ends by a signal of that name, in which PASSWORD stands for the password.

Prints its port and host key; ends when its standard input does."""

import asyncio
import os
import sys

import asyncssh

PASSWORDS = {
    "by-password": os.environ["BY_PASSWORD"],
    "by-questions": os.environ["BY_QUESTIONS"],
}


class Server(asyncssh.SSHServer):
    user = ""

    def begin_auth(self, username):
        self.user = username
        return True

    def password_auth_supported(self):
        return self.user == "by-password"

    def validate_password(self, username, password):
        return password == PASSWORDS[username]

    def kbdint_auth_supported(self):
        return self.user == "by-questions"

    def get_kbdint_challenge(self, username, lang, submethods):
        return "", "", "", [("Name: ", True), ("Password: ", False)]

    def validate_kbdint_response(self, username, responses):
        return list(responses) == ["", PASSWORDS[username]]


def handle(process):
    password = PASSWORDS[process.get_extra_info("username")]
    process.stdout.write(f"logged in with {password}\n")
    process.stderr.write(f"told again: {password}\n")
    verb, _, name = process.command.partition(" ")
    if verb == "end":
        name = name.replace("PASSWORD", password)
        process.exit_with_signal(name, False, f"told as well: {password}", f"x-{password}")
    else:
        process.exit(0)


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=Server, server_host_keys=[key], process_factory=handle
    )
    public = key.export_public_key("openssh").decode().strip()
    print(f"{server.get_port()} {public}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()
    await server.wait_closed()


asyncio.run(main())
