"""A jump, commands and sftp by paramiko."""

import sys

import paramiko

port, key, user, root, _known_hosts = sys.argv[1:]
key = paramiko.Ed25519Key.from_private_key_file(key)


def client(address, port, user, sock=None):
    client = paramiko.SSHClient()
    # Paramiko knows no host certificates.
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect(
        address,
        port,
        user,
        pkey=key,
        sock=sock,
        allow_agent=False,
        look_for_keys=False,
        timeout=20,
    )
    return client


gateway = client("127.0.0.1", int(port), "coder")
channel = gateway.get_transport().open_channel("direct-tcpip", ("t", 22), ("127.0.0.1", 0))
target = client("t", 22, user, channel)
stdin, stdout, stderr = target.exec_command("cat; echo err >&2; exit 7", timeout=20)
stdin.write("in")
stdin.channel.shutdown_write()
assert stdout.read() == b"in"
assert stderr.read() == b"err\n"
assert stdout.channel.recv_exit_status() == 7
sftp = target.open_sftp()
sftp.put(f"{root}/here", f"{root}/there")
sftp.get(f"{root}/there", f"{root}/back")
sftp.close()
target.close()
gateway.close()
print("done")
