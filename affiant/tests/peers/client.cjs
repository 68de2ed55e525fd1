// One job by fetch, undici, axios, ws, ws over HTTP/2, or http2 through a tunnel on a stream of HTTP/2
// with the proxy itself, set up by the environment alone.
//
// usage: node client.cjs LIBRARY BASE FILE NAME hello|files|sse|ws...
//
// Prints one line per step; the test knows what has to stand there.
'use strict';
const { createHash } = require('crypto');
const fs = require('fs');
const http = require('http');
const http2 = require('http2');
const tls = require('tls');
const undici = require('undici');
const axios = require('axios');
const { HttpsProxyAgent } = require('https-proxy-agent');
const { WebSocket } = require('ws');

const [library, base, file, name, ...steps] = process.argv.slice(2);
const stored = `${base}/files/${name}`;
const digest = (body) => createHash('sha256').update(Buffer.from(body)).digest('hex');
undici.setGlobalDispatcher(new undici.EnvHttpProxyAgent());

// Each library as one function: status, and the body as an async iterator of bytes.
const ask = {
  async fetch(method, url, body) {
    const answer = await undici.fetch(url, { method, body, duplex: 'half' });
    return { status: answer.status, body: answer.body ?? [] };
  },
  async undici(method, url, body) {
    const answer = await undici.request(url, { method, body });
    return { status: answer.statusCode, body: answer.body };
  },
  async axios(method, url, data) {
    const answer = await axios({ method, url, data, responseType: 'stream' });
    return { status: answer.status, body: answer.data };
  },
  async 'h2-proxy'(method, url, body) {
    inside ??= within();
    const session = await inside;
    const stream = session.request({ ':method': method, ':path': new URL(url).pathname + new URL(url).search });
    if (body) body.pipe(stream);
    else stream.end();
    const headers = await new Promise((resolve, reject) =>
      stream.on('response', resolve).on('error', reject));
    return { status: headers[':status'], body: stream };
  },
}[library];

// HTTP/2 in TLS on a stream that CONNECT opened on an HTTP/2 connection with the proxy.
let inside;
async function within() {
  const proxy = new URL(process.env.PROXY_OVER_TLS);
  const outer = http2.connect(`https://${proxy.host}`);
  const tunnel = outer.request({
    ':method': 'CONNECT',
    ':authority': new URL(base).host,
    'proxy-authorization':
      'Basic ' + Buffer.from(`${proxy.username}:${proxy.password}`).toString('base64'),
  });
  const headers = await new Promise((resolve, reject) =>
    tunnel.on('response', resolve).on('error', reject));
  if (headers[':status'] !== 200) throw new Error(`status ${headers[':status']}`);
  return http2.connect(base, {
    createConnection: () =>
      tls.connect({ socket: tunnel, servername: 'localhost', ALPNProtocols: ['h2'] }),
  });
}

async function whole({ status, body }) {
  const parts = [];
  for await (const part of body) parts.push(part);
  return { status, body: Buffer.concat(parts) };
}

function upgraded() {
  const agent = new HttpsProxyAgent(process.env.https_proxy);
  return new WebSocket(`${base.replace('https', 'wss')}/ws`, { agent });
}

// A WebSocket of ws on a stream that an extended CONNECT opened (RFC 8441), in a tunnel.
async function connected() {
  const proxy = new URL(process.env.https_proxy);
  const asking = http.request({
    host: proxy.hostname,
    port: proxy.port,
    method: 'CONNECT',
    path: new URL(base).host,
    headers: {
      'proxy-authorization':
        'Basic ' + Buffer.from(`${proxy.username}:${proxy.password}`).toString('base64'),
    },
  });
  const tunnel = await new Promise((resolve, reject) =>
    asking.on('connect', (_, socket) => resolve(socket)).on('error', reject).end());
  const session = http2.connect(base, {
    createConnection: () =>
      tls.connect({ socket: tunnel, servername: 'localhost', ALPNProtocols: ['h2'] }),
  });
  const settings = await new Promise((resolve, reject) =>
    session.on('remoteSettings', resolve).on('error', reject));
  if (!settings.enableConnectProtocol) throw new Error('no extended CONNECT');
  const stream = session.request({
    ':method': 'CONNECT',
    ':protocol': 'websocket',
    ':path': '/ws',
    'sec-websocket-version': '13',
  });
  const headers = await new Promise((resolve, reject) =>
    stream.on('response', resolve).on('error', reject));
  if (headers[':status'] !== 200) throw new Error(`status ${headers[':status']}`);
  const socket = new WebSocket(null, undefined, {});
  socket._isServer = false;
  socket.setSocket(stream, Buffer.alloc(0), { maxPayload: 0, skipUTF8Validation: false });
  setImmediate(() => socket.emit('open'));
  return socket;
}

async function run(step) {
  if (step === 'hello') {
    const { status, body } = await whole(await ask('GET', `${base}/hello?by=${library}`));
    console.log('hello', status, body.toString());
  } else if (step === 'files') {
    const put = await whole(await ask('PUT', stored, fs.createReadStream(file)));
    console.log('put', put.status);
    const { status, body } = await whole(await ask('GET', stored));
    console.log('get', status, digest(body));
  } else if (step === 'sse') {
    const { body } = await ask('GET', `${base}/sse?id=${name}`);
    for await (const part of body) {
      for (const [, number] of Buffer.from(part).toString().matchAll(/data: (\d+)/g)) {
        await whole(await ask('POST', `${base}/ack?id=${name}&n=${number}`));
        console.log('event', number);
      }
    }
  } else if (step === 'ws') {
    const socket = library === 'ws-h2' ? await connected() : upgraded();
    const content = fs.readFileSync(file);
    socket.on('open', () => socket.send('text'));
    socket.on('message', (data, binary) => {
      console.log('ws', binary ? digest(data) : data.toString());
      if (binary) socket.close(1000);
      else socket.send(content);
    });
    await new Promise((resolve, reject) => socket.on('close', resolve).on('error', reject));
  }
}

(async () => {
  for (const step of steps) await run(step);
  process.exit(0);
})();
