// One job by fetch, undici, axios or ws, set up by the environment alone.
//
// usage: node client.cjs LIBRARY BASE FILE NAME hello|files|sse|ws...
//
// Prints one line per step; the test knows what has to stand there.
'use strict';
const { createHash } = require('crypto');
const fs = require('fs');
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
}[library];

async function whole({ status, body }) {
  const parts = [];
  for await (const part of body) parts.push(part);
  return { status, body: Buffer.concat(parts) };
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
    const agent = new HttpsProxyAgent(process.env.https_proxy);
    const socket = new WebSocket(`${base.replace('https', 'wss')}/ws`, { agent });
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
