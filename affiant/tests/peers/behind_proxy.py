"""A plugin of pytest: every test of the library requests, which clears the proxy variables, gets them
back from BEHIND_PROXY."""

import os

import pytest


@pytest.fixture(autouse=True)
def behind_proxy(clean_proxy_environ, monkeypatch):
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, os.environ["BEHIND_PROXY"])
