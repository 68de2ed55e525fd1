"""Reads the raw requests in a folder with h11, and prints what each of them is, one JSON line each."""

import json
import pathlib
import sys

import h11

for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    server = h11.Connection(h11.SERVER)
    server.receive_data(path.read_bytes())
    read = {"name": path.name, "content": "", "ended": False}
    try:
        while True:
            event = server.next_event()
            if event in (h11.NEED_DATA, h11.PAUSED):
                break
            if isinstance(event, h11.Request):
                read["method"] = event.method.decode("latin-1")
                read["target"] = event.target.decode("latin-1")
                read["fields"] = [[n.decode("latin-1"), v.decode("latin-1")] for n, v in event.headers]
            elif isinstance(event, h11.Data):
                read["content"] += bytes(event.data).hex()
            elif isinstance(event, h11.EndOfMessage):
                read["ended"] = True
                read["trailers"] = [[n.decode("latin-1"), v.decode("latin-1")] for n, v in event.headers]
                break
        read["left"] = len(server.trailing_data[0])
    except h11.RemoteProtocolError as error:
        read["error"] = str(error)
    print(json.dumps(read))
