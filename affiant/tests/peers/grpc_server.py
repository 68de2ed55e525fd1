"""A gRPC server (grpcio) with one method of each kind; messages are plain bytes.

usage: grpc_server.py CERTIFICATE KEY DIRECTORY

Prints its port; ends with its stdin.
"""

import sys
import threading
from concurrent import futures

import grpc


def unary(request, context):
    if request == b"missing":
        context.set_trailing_metadata([("reason", "not here")])
        context.abort(grpc.StatusCode.NOT_FOUND, "nothing of that name")
    return b"unary " + request


def server_stream(request, context):
    for number in range(5):
        yield b"%s %d" % (request, number)


def client_stream(requests, context):
    return b"%d bytes" % sum(len(request) for request in requests)


def both(requests, context):
    """Leaves a file behind when the call is over."""
    context.add_callback(lambda: open(f"{directory}/both-ended", "w").close())
    for request in requests:
        yield b"echo " + request


calls = 0


def stuck(request, context):
    """Does its work and does not answer while it is waited for."""
    global calls
    if request == b"how often":
        return b"%d" % calls
    calls += 1
    done = threading.Event()
    context.add_callback(done.set)
    done.wait(60)
    return b""


class Demo(grpc.GenericRpcHandler):
    methods = {
        "/demo.Demo/Unary": grpc.unary_unary_rpc_method_handler(unary),
        "/demo.Demo/Stuck": grpc.unary_unary_rpc_method_handler(stuck),
        "/demo.Demo/ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
        "/demo.Demo/ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
        "/demo.Demo/Both": grpc.stream_stream_rpc_method_handler(both),
    }

    def service(self, details):
        return self.methods.get(details.method)


certificate, key, directory = (open(path, "rb").read() if "leaf" in path else path for path in sys.argv[1:])
server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
server.add_generic_rpc_handlers([Demo()])
credentials = grpc.ssl_server_credentials([(key, certificate)])
print(server.add_secure_port("127.0.0.1:0", credentials), flush=True)
server.start()
sys.stdin.read()
server.stop(None)
