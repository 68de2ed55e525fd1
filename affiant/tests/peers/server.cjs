// An HTTPS server in Node for HTTP/1.1 and HTTP/2: files, an event stream, a WebSocket over both.
//
// usage: node server.cjs CERTIFICATE KEY DIRECTORY
//
// As server.py, a stream sends its next event after the one before it was acknowledged. Prints its
// port; ends with its stdin.
'use strict';
const fs = require('fs');
const http2 = require('http2');
const path = require('path');
const { pipeline } = require('stream');
const { WebSocket, WebSocketServer } = require('ws');

const [certificate, key, directory] = process.argv.slice(2);
const waiting = new Map();
const acknowledged = new Set();

function acknowledge(id, then) {
  if (acknowledged.has(id)) then();
  else waiting.set(id, then);
}

function sse(response, id, number) {
  if (number === 3) return response.end();
  response.write(`data: ${number}\n\n`);
  acknowledge(`${id}/${number}`, () => sse(response, id, number + 1));
}

const server = http2.createSecureServer({
  allowHTTP1: true,
  cert: fs.readFileSync(certificate),
  key: fs.readFileSync(key),
  settings: { enableConnectProtocol: true },
});

server.on('request', (request, response) => {
  const url = new URL(request.url, 'https://localhost');
  const file = path.join(directory, path.basename(url.pathname));
  if (url.pathname === '/hello') {
    response.end(`hello ${url.search.slice(1)}`);
  } else if (url.pathname === '/sse') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    sse(response, url.searchParams.get('id'), 0);
  } else if (url.pathname === '/ack') {
    const id = `${url.searchParams.get('id')}/${url.searchParams.get('n')}`;
    acknowledged.add(id);
    waiting.get(id)?.();
    response.writeHead(204).end();
  } else if (request.method === 'PUT') {
    pipeline(request, fs.createWriteStream(file), (error) => {
      response.writeHead(error ? 500 : 201).end();
    });
  } else {
    response.writeHead(200, { 'content-length': fs.statSync(file).size });
    pipeline(fs.createReadStream(file), response, () => {});
  }
});

function echo(client) {
  client.on('message', (data, binary) => client.send(data, { binary }));
}

const sockets = new WebSocketServer({ noServer: true });
server.on('upgrade', (request, socket, head) => sockets.handleUpgrade(request, socket, head, echo));
// An extended CONNECT (RFC 8441); the stream is the socket of a server of ws. Without this listener Node
// answers 405 by itself.
server.on('connect', () => {});
server.on('stream', (stream, headers) => {
  if (headers[':protocol'] !== 'websocket') return;
  stream.respond({ ':status': 200 });
  const client = new WebSocket(null, undefined, {});
  client.setSocket(stream, Buffer.alloc(0), { maxPayload: 0, skipUTF8Validation: false });
  echo(client);
});

server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.stdin.on('end', () => process.exit(0)).resume();
