// The console's page with as much of a browser as its script needs: gets the page, runs its script, logs
// in, and presses "Older" until there is nothing older. Prints what the page shows, as JSON.
"use strict";
const vm = require("node:vm");

const [base, token] = process.argv.slice(2);

class Element {
  constructor(tag, isHidden = false) {
    Object.assign(this, { tag, hidden: isHidden, disabled: false, value: "", dataset: {} });
    Object.assign(this, { children: [], listeners: {}, textContent: "" });
  }
  append(...more) { this.children.push(...more); }
  replaceChildren(...all) { this.children = all; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  fire(name) { return this.listeners[name]({ preventDefault() {} }); }
  all(tag) {
    return this.children.flatMap((child) => [...(child.tag === tag ? [child] : []), ...child.all(tag)]);
  }
}

async function until(what, condition) {
  const end = Date.now() + 20000;
  while (!condition()) {
    if (Date.now() > end) throw new Error("not in time: " + what);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

async function main() {
  const html = await (await fetch(base + "/")).text();
  const script = html.match(/<script>(.*)<\/script>/s)[1];
  const elements = {};
  for (const [tag, name, id] of html.matchAll(/<(\w+) [^>]*?\bid="(\w+)"[^>]*>/g)) {
    elements[id] = new Element(name, /\shidden[\s>]/.test(tag));
  }
  elements.by.value = "operator";
  const document = {
    getElementById: (id) => elements[id],
    createElement: (tag) => new Element(tag),
  };
  // Nothing is looked at again by itself.
  const page = { document, URLSearchParams, setTimeout() {}, fetch: (path, how) => fetch(base + path, how) };
  vm.runInNewContext(script, page);
  elements.token.value = token;
  elements.login.fire("submit");
  await until("the login", () => !elements.main.hidden);
  const held = elements.held.all("article").map((box) => {
    const [names, values] = ["dt", "dd"].map((tag) => box.all(tag).map((one) => one.textContent));
    return names.map((name, at) => [name, values[at]]);
  });
  const shown = () => elements.invocations.children.map((row) => row.all("button")[0].textContent);
  const pages = [shown()];
  while (!elements.older.disabled) {
    const first = shown()[0];
    elements.older.fire("click");
    await until("an older page", () => shown()[0] !== first);
    pages.push(shown());
  }
  console.log(JSON.stringify({ held, pages, message: elements.message.textContent }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
