"""A plugin of pytest: every test of the library requests, which clears the proxy variables, gets the
one for clear text back from BEHIND_PROXY. Its servers over TLS have authorities of their own."""

import os

import pytest


@pytest.fixture(autouse=True)
def behind_proxy(clean_proxy_environ, monkeypatch):
    monkeypatch.setenv("http_proxy", os.environ["BEHIND_PROXY"])
