"""Makes calls that are refused, or end unknown, by grpcio with all the retries that it can be told to make.

usage: grpc_retries.py HOST:PORT
"""

import json
import sys

import grpc

retries = {
    "name": [{}],
    "retryPolicy": {
        "maxAttempts": 4,
        "initialBackoff": "0.1s",
        "maxBackoff": "1s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE", "UNKNOWN", "INTERNAL", "FAILED_PRECONDITION", "DATA_LOSS"],
    },
}
options = [("grpc.service_config", json.dumps({"methodConfig": [retries]}))]
channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials(), options)


def call(method, message):
    try:
        return channel.unary_unary(f"/demo.Demo/{method}")(message, timeout=30).decode()
    except grpc.RpcError as error:
        metadata = dict([*(error.initial_metadata() or ()), *(error.trailing_metadata() or ())])
        return f"{error.code().name} {metadata['affiant-outcome'].split(';')[0]}: {error.details()}"


print(call("Inward", b"x"))
print(call("Stuck", b"work"))
print(call("Stuck", b"how often"))
