"""Holds one stream of grpcio open, through the proxy of the environment: sends each line of stdin as a
message, and prints each answer, or how the stream ended.

usage: grpc_open.py HOST:PORT
"""

import os
import sys

import grpc

roots = open(os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"], "rb").read()
channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials(roots))
messages = (line.rstrip("\n").encode() for line in sys.stdin)
try:
    for answer in channel.stream_stream("/demo.Demo/Both")(messages):
        print(answer.decode(), flush=True)
    print("ended in order", flush=True)
except grpc.RpcError as error:
    print(f"broken: {error.code().name}", flush=True)
# A thread of the library may still wait for stdin.
os._exit(0)
