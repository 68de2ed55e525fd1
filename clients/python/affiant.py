"""Affiant's answers in Python: errors that carry the whole envelope, and repeats that are safe.

Works beside any HTTP library: give a function that sends the request and returns the response.

    import affiant, requests

    broker = affiant.Broker.from_environment()
    send = lambda headers: requests.post(URL, json=BODY, headers=headers)
    response = broker.call(send)                     # raises affiant.Failed with .envelope
    response = broker.call(send, repeat=True)        # repeats `backoff` and `same_idempotency_key` only

What is in doubt is never repeated by these. `call_again_although_it_may_happen_twice` is for that.
The standard library is all that it needs.
"""

import base64
import email.utils
import json
import os
import random
import re
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request

#: Instructions that a program may follow by itself (contract T-4).
REPEATABLE = ("backoff", "same_idempotency_key")
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ADDRESS = "http://affiant.internal/v1/"


def new_invocation_id():
    """An id of the caller's own: `act_` and a ULID."""
    number = (int(time.time() * 1000) << 80) | secrets.randbits(80)
    return "act_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


class Envelope:
    """What the broker knows of a call. `raw` is the whole of it."""

    def __init__(self, raw):
        self.raw = raw
        self.invocation_id = raw.get("invocation_id")
        error = raw.get("error", {})
        self.code = error.get("code")
        self.phase = error.get("phase")
        self.outcome = error.get("outcome")
        self.retry = error.get("retry")
        self.message = error.get("message", "")
        self.field = error.get("field")
        self.not_before_ms = error.get("not_before_ms")
        #: The earlier invocation whose instruction holds instead (a repeat that was stopped).
        self.follow = error.get("follow")
        self.evidence = raw.get("evidence", {})

    def __repr__(self):
        return f"<Envelope {self.invocation_id} {self.outcome} {self.retry} {self.code}>"


class Failed(Exception):
    """A call that did not succeed. Carries the envelope, and the response where there is one."""

    def __init__(self, envelope, response=None):
        super().__init__(f"{envelope.code}: {envelope.message} ({envelope.invocation_id})")
        self.envelope = envelope
        self.response = response


class Refused(Exception):
    """The control API refused; `code` is stable, `document` is the whole answer."""

    def __init__(self, status, document):
        super().__init__(f"{document.get('code')}: {document.get('detail')}")
        self.status = status
        self.code = document.get("code")
        self.document = document


def _headers(response):
    return {str(name).lower(): value for name, value in response.headers.items()}


def _status(response):
    return getattr(response, "status_code", None) or response.status


def _content(response):
    content = getattr(response, "content", None)
    return response.read() if content is None else content


def outcome_of(response):
    """The facts of the `Affiant-Outcome` header as a dictionary, or None without one."""
    field = _headers(response).get("affiant-outcome")
    if field is None:
        return None
    outcome, _, rest = field.partition(";")
    facts = {"outcome": outcome.strip()}
    for name, value in re.findall(r"\s*([a-z_]+)=([^;]*)", rest):
        facts[name] = value.strip().strip('"')
    return facts


def envelope_of(response):
    """The envelope of a response: the broker's own answer in whole, else what its header says.

    None for a response that did not come through the broker.
    """
    facts = outcome_of(response)
    if facts is None:
        return None
    if _headers(response).get("content-type", "").startswith("application/problem+json"):
        try:
            raw = json.loads(_content(response))
        except ValueError:
            raw = None
        if isinstance(raw, dict) and raw.get("invocation_id") == facts.get("invocation"):
            return Envelope(raw)
    error = {name: facts.get(name) for name in ("outcome", "phase", "retry")}
    error["code"] = facts.get("code")
    error["message"] = "The service answered; its answer is the response."
    return Envelope({"invocation_id": facts.get("invocation"), "error": error})


def _asked_pause(retry_after):
    """Seconds that a `Retry-After` asks for: a number or a date (RFC 9110 section 10.2.3)."""
    if re.fullmatch(r"[0-9]+", retry_after):
        return float(retry_after)
    try:
        return email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (TypeError, ValueError):
        return 0.0


def _send(send, headers):
    """The response, its envelope, and the exception that a library made of them, if it did.

    urllib raises the response itself; requests and httpx put it on what `raise_for_status` raises.
    An exception without an envelope is the caller's as it is.
    """
    try:
        response = send(headers)
        return response, envelope_of(response), None
    except Exception as error:
        carried = isinstance(error, urllib.error.HTTPError)
        response = error if carried else getattr(error, "response", None)
        if not hasattr(response, "headers") or _status(response) < 400:
            raise
        envelope = envelope_of(response)
        if envelope is None:
            raise
        return response, envelope, error


class Broker:
    """One broker, as one agent sees it."""

    def __init__(self, proxy_url):
        parts = urllib.parse.urlsplit(proxy_url)
        if not parts.hostname or not parts.username:
            raise ValueError("give the proxy's URL with agent and token: http://agent:token@host:port")
        word = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        self._authorization = "Basic " + base64.b64encode(word.encode()).decode()
        self._proxy = f"{parts.hostname}:{parts.port or 80}"

    @classmethod
    def from_environment(cls):
        """From the proxy variables that `affiant run` sets."""
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
            if os.environ.get(name):
                return cls(os.environ[name])
        raise ValueError("no proxy variable is set: run under `affiant run`")

    # --- calls -----------------------------------------------------------------------------------

    def call(self, send, *, repeat=False, attempts=3, within=60.0):
        """Sends by `send(headers)` and returns the response, or raises `Failed`.

        `Failed` also where the library raises by itself; its exception is the `__cause__`.
        With `repeat=True` it sends again where the instruction is `backoff` or
        `same_idempotency_key`, no sooner than the stated time, and for nothing else.
        """
        until = time.monotonic() + within
        for attempt in range(1, attempts + 1):
            response, envelope, cause = _send(send, {})
            if _status(response) < 400 or envelope is None:
                return response
            if not repeat or envelope.retry not in REPEATABLE or attempt == attempts:
                raise Failed(envelope, response) from cause
            pause = min(10.0, 0.2 * 2**attempt) * random.uniform(0.5, 1.0)
            if envelope.not_before_ms is not None:
                pause = max(pause, envelope.not_before_ms / 1000 - time.time())
            pause = max(pause, _asked_pause(_headers(response).get("retry-after", "")))
            if time.monotonic() + pause > until:
                raise Failed(envelope, response) from cause
            time.sleep(pause)

    def call_again_although_it_may_happen_twice(self, send):
        """UNSAFE: sends a call again whose outcome is in doubt, as a new action of its own id.

        The effect can happen twice. Ask first: `reconcile`, or a person.
        """
        response, envelope, cause = _send(send, {"Affiant-Invocation": new_invocation_id()})
        if _status(response) < 400 or envelope is None:
            return response
        raise Failed(envelope, response) from cause

    # --- records ---------------------------------------------------------------------------------

    def show(self, invocation_id, *, wait=None):
        """State and evidence; `wait` in seconds waits for the call to settle."""
        return self._json("GET", self._path(invocation_id) + (f"?wait={int(wait)}s" if wait else ""))

    def events(self, invocation_id):
        """The events of one invocation, in order."""
        return self._json("GET", self._path(invocation_id, "/events"))["events"]

    def decide(self, invocation_id):
        """What may be done now: `decision`, `retry`, `not_before_ms` and the budget."""
        return self._json("GET", self._path(invocation_id, "/decision"))

    def result(self, invocation_id):
        """The stored response as (status, headers, content). A read: nothing is sent again."""
        status, headers, content = self._ask("GET", self._path(invocation_id, "/result"))
        if "affiant-result" not in headers:
            raise Refused(status, self._document(content))
        return status, headers, content

    def retry(self, invocation_id):
        """Has the broker make one more attempt, where the instruction allows it."""
        return self._json("POST", self._path(invocation_id, "/retry"))

    def reconcile(self, invocation_id):
        """Has the broker ask the service what happened."""
        return self._json("POST", self._path(invocation_id, "/reconcile"))

    def acknowledge(self, invocation_id):
        """Confirms that the result was received."""
        status, _, content = self._ask("POST", self._path(invocation_id, "/ack"))
        if status >= 400:
            raise Refused(status, self._document(content))

    def waiting(self):
        """The agent's calls in doubt that wait for a person."""
        return self._json("GET", "waiting")["invocations"]

    # --- the way there ---------------------------------------------------------------------------

    @staticmethod
    def _path(invocation_id, rest=""):
        if not re.fullmatch(r"act_[0-9A-Z]{26}", invocation_id):
            raise ValueError(f"{invocation_id!r} is no invocation id")
        return f"invocations/{invocation_id}{rest}"

    @staticmethod
    def _document(content):
        try:
            return json.loads(content)
        except ValueError:
            return {"code": "NO_DOCUMENT", "detail": "the answer is no JSON"}

    def _ask(self, method, path):
        request = urllib.request.Request(_ADDRESS + path, method=method)
        request.add_header("Proxy-Authorization", self._authorization)
        request.set_proxy(self._proxy, "http")
        # No other handler: variables of the environment have no part in this.
        opener = urllib.request.OpenerDirector()
        opener.add_handler(urllib.request.HTTPHandler())
        with opener.open(request, timeout=120) as response:
            return response.status, _headers(response), response.read()

    def _json(self, method, path):
        status, _, content = self._ask(method, path)
        document = self._document(content)
        if status >= 400:
            raise Refused(status, document)
        return document
