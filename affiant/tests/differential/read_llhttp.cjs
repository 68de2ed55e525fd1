// Reads the raw requests in a folder with Node's parser (llhttp, strict), and prints what each of them
// is, one JSON line each.

const fs = require("fs");
const http = require("http");
const net = require("net");
const path = require("path");

const pairs = (flat) => {
  const all = [];
  for (let at = 0; at < flat.length; at += 2) all.push([flat[at].toLowerCase(), flat[at + 1]]);
  return all;
};

function read(name, bytes) {
  return new Promise((resolve) => {
    const server = http.createServer({ insecureHTTPParser: false, maxHeaderSize: 1 << 20 });
    const done = (found) => {
      server.closeAllConnections();
      server.close(() => resolve({ name, content: "", ended: false, ...found }));
    };
    server.on("clientError", (error) => done({ error: error.code || String(error) }));
    server.on("request", (request) => {
      const pieces = [];
      request.on("data", (piece) => pieces.push(piece));
      request.on("end", () =>
        done({
          method: request.method,
          target: request.url,
          fields: pairs(request.rawHeaders),
          content: Buffer.concat(pieces).toString("hex"),
          trailers: pairs(request.rawTrailers),
          ended: true,
        }),
      );
    });
    server.listen(0, "127.0.0.1", () => {
      const socket = net.connect(server.address().port, "127.0.0.1", () => socket.end(bytes));
      socket.on("error", () => {});
      socket.resume();
    });
  });
}

(async () => {
  for (const name of fs.readdirSync(process.argv[2]).sort()) {
    const found = await read(name, fs.readFileSync(path.join(process.argv[2], name)));
    process.stdout.write(JSON.stringify(found) + "\n");
  }
})();
