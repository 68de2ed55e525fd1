"""Calls each kind of method by grpcio, which takes proxy and roots from the environment.

usage: grpc_client.py HOST:PORT
"""

import queue
import sys

import grpc

channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials())

unary = channel.unary_unary("/demo.Demo/Unary")
print(unary(b"one", timeout=30).decode())
try:
    unary(b"missing", timeout=30)
except grpc.RpcError as error:
    print(error.code().name, error.details(), dict(error.trailing_metadata())["reason"])

print([part.decode() for part in channel.unary_stream("/demo.Demo/ServerStream")(b"part", timeout=30)])
large = channel.stream_unary("/demo.Demo/ClientStream")
print(large((bytes(100_000) for _ in range(10)), timeout=30).decode())

# Each message is sent after the answer to the one before it.
outbox = queue.SimpleQueue()
outbox.put(b"0")
for number, answer in enumerate(channel.stream_stream("/demo.Demo/Both")(iter(outbox.get, None), timeout=30)):
    print(answer.decode())
    outbox.put(b"%d" % (number + 1) if number < 2 else None)
